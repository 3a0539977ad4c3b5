"""From a recipe to a runner with its groups launched, and back to nothing left behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.errors import ConfigError
from headrace.learning.envs.make import check_id
from headrace.runners.async_runner import AsyncRunner
from headrace.runners.config import EmbodiedRecipe
from headrace.runners.embodied import EmbodiedRunner, Groups
from headrace.runners.sync_runner import SyncRunner
from headrace.system import Cluster, ComponentPlacement, PlacementStrategy
from headrace.system.runtime import session
from headrace.telemetry.console import Console

if TYPE_CHECKING:
    from headrace.workers.env import EnvWorker
    from headrace.workers.learner import LearnerWorker
    from headrace.workers.rollout import RolloutWorker

RUNNERS: dict[str, type[EmbodiedRunner]] = {"sync": SyncRunner, "async": AsyncRunner}
LEARNER_GROUP, ROLLOUT_GROUP, ENV_GROUP = "learner", "rollout", "env"


@contextlib.contextmanager
def launched(recipe: EmbodiedRecipe, run_dir: Path, console: Console) -> Iterator[EmbodiedRunner]:
    """A runner on its cluster. On leaving, whatever happened, the books are flushed and every process is ended.

    Raises:
        ConfigError, ResourceError, ClusterError: the recipe does not fit the cluster; nothing is left running.
    """
    begun = time.monotonic()
    check_id(recipe.env.id)
    with contextlib.ExitStack() as stack:
        roles = stack.enter_context(ThreadPoolExecutor(1)).submit(_import_roles)
        if recipe.cluster is None:
            stack.enter_context(session.inline(run_dir / "logs"))
            cluster, strategies = None, {}
            sizes = {ENV_GROUP: 1, ROLLOUT_GROUP: 1, LEARNER_GROUP: 1}
        else:
            cluster = stack.enter_context(Cluster(recipe.cluster, run_dir=run_dir))
            placement = ComponentPlacement(recipe, cluster)
            strategies = {name: placement.get_strategy(name) for name in placement.components}
            sizes = {name: placement.get_world_size(name) for name in placement.components}
        _check_sizes(recipe, sizes)
        cluster_s = time.monotonic() - begun
        groups = _launch(recipe, roles.result(), cluster, strategies, sizes)
        runner = RUNNERS[recipe.runner.mode](recipe, groups, run_dir, console, cluster_s=cluster_s)
        stack.callback(runner.close)
        runner.init_workers()
        yield runner


@dataclass(frozen=True)
class _Roles:
    """The worker classes."""

    env: type[EnvWorker]
    rollout: type[RolloutWorker]
    learner: type[LearnerWorker]


def _import_roles() -> _Roles:
    """Import the worker classes here and not above: torch takes seconds, which pass while Ray starts."""
    from headrace.workers.env import EnvWorker
    from headrace.workers.learner import LearnerWorker
    from headrace.workers.rollout import RolloutWorker

    return _Roles(EnvWorker, RolloutWorker, LearnerWorker)


def _launch(
    recipe: EmbodiedRecipe,
    roles: _Roles,
    cluster: Cluster | None,
    strategies: dict[str, PlacementStrategy],
    sizes: dict[str, int],
) -> Groups:
    env = roles.env.create_group(
        recipe.env,
        recipe.rollout,
        num_rollout_ranks=sizes[ROLLOUT_GROUP],
        num_learner_ranks=sizes[LEARNER_GROUP],
        seed=recipe.seed,
    )
    rollout = roles.rollout.create_group(
        recipe.model,
        recipe.rollout,
        num_env_ranks=sizes[ENV_GROUP],
        learner_group=LEARNER_GROUP,
        num_learner_ranks=sizes[LEARNER_GROUP],
        lockstep=recipe.runner.mode == "sync",
        seed=recipe.seed,
    )
    learner = roles.learner.create_group(
        recipe.model,
        recipe.algorithm,
        recipe.rollout,
        trajectories_per_step=_trajectories(recipe, sizes) // sizes[LEARNER_GROUP],
        rollout_group=ROLLOUT_GROUP,
        num_rollout_ranks=sizes[ROLLOUT_GROUP],
        seed=recipe.seed,
    )
    named = {LEARNER_GROUP: learner, ROLLOUT_GROUP: rollout, ENV_GROUP: env}
    for name, group in named.items():  # the slowest to start first
        group.launch(cluster, placement_strategy=strategies.get(name), name=name)
    return Groups(env, rollout, learner)


def _trajectories(recipe: EmbodiedRecipe, sizes: dict[str, int]) -> int:
    return recipe.runner.trajectories_per_step or sizes[ENV_GROUP]


def _check_sizes(recipe: EmbodiedRecipe, sizes: dict[str, int]) -> None:
    """Every learner rank gets the same number of trajectories, every env rank gives the same number."""
    total, envs, learners = _trajectories(recipe, sizes), sizes[ENV_GROUP], sizes[LEARNER_GROUP]
    if envs % learners:
        remedy = f"{envs} env ranks do not divide evenly among {learners} learner ranks; make it a multiple"
        raise ConfigError("cluster.component_placement.env", envs, remedy)
    if total % learners:
        raise ConfigError("runner.trajectories_per_step", total, f"make it a multiple of the {learners} learner ranks")
    if recipe.runner.mode == "sync" and total % envs:
        raise ConfigError("runner.trajectories_per_step", total, f"make it a multiple of the {envs} env ranks")
