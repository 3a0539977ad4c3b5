"""The update: exact resume, the same result however the data is spread, and no damage by a bad gradient."""

from __future__ import annotations

import io
import multiprocessing
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.core.errors import CheckpointError, ConfigError
from headrace.learning.data.trajectory import Trajectory
from headrace.learning.learners.config import PPOSettings
from headrace.learning.learners.learner import Learner
from headrace.learning.learners.parallel import DDP, Parallel
from headrace.learning.learners.staleness import is_too_stale, mean_staleness, staleness
from headrace.learning.models.config import ModelConfig
from headrace.learning.models.mlp_module import build_module

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACT = spaces.Box(-1, 1, (1,), np.float32)


def _learner(parallel: Parallel | None = None, **changes: Any) -> Learner:
    settings = PPOSettings(**{"epochs": 2, "minibatch_size": 8, "lr": 1e-3, **changes})
    module = build_module(ModelConfig(hidden=(8,)), OBS, ACT, seed=1)
    return Learner(settings, module, parallel, seed=5)


def _trajectory(seed: int, steps: int = 6, envs: int = 2, version: int = 0) -> Trajectory:
    """Random data with actions that the untrained policy could have taken."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, envs)) < 0.2
    truncated = ~terminated & (rng.random((steps, envs)) < 0.2)
    final_index = np.argwhere(terminated | truncated).astype(np.int32)
    obs = rng.normal(2.0, 3.0, (steps + 1, envs, 3)).astype(np.float32)
    actions = rng.normal(size=(steps, envs, 1)).astype(np.float32)
    module = build_module(ModelConfig(hidden=(8,)), OBS, ACT, seed=1)
    with torch.no_grad():
        out = module.forward_train(torch.from_numpy(obs[:-1]).flatten(0, 1), torch.from_numpy(actions).flatten(0, 1))
    return Trajectory(
        obs=obs,
        actions=actions,
        log_probs=out.log_probs.view(steps, envs).numpy(),
        values=out.values.view(steps, envs).numpy(),
        rewards=rng.normal(size=(steps, envs, 1)).astype(np.float32),
        num_executed=np.ones((steps, envs), np.int32),
        terminated=terminated,
        truncated=truncated,
        final_index=final_index,
        final_obs=rng.normal(size=(len(final_index), 3)).astype(np.float32),
        versions=np.full((steps, envs), version, np.int32),
    )


def _assert_same(a: Learner, b: Learner, **tolerance: float) -> None:
    for (name, ours), theirs in zip(a.module.state_dict().items(), b.module.state_dict().values()):
        if tolerance:
            torch.testing.assert_close(ours, theirs, **tolerance, msg=name)
        else:
            assert torch.equal(ours, theirs), name


def test_before_the_first_step_the_ratio_is_one() -> None:
    metrics = _learner().update([_trajectory(0)])
    assert metrics["train/ratio_error"] < 1e-6
    assert metrics["train/staleness"] == 0.0


@pytest.mark.parametrize("loss", ["ppo", "decoupled_ppo"])
def test_an_update_raises_what_was_good_and_lowers_what_was_bad(loss: str) -> None:
    learner = _learner(loss=loss, normalize_advantages=False, lr=1e-4, epochs=1, minibatch_size=1000)
    trajectory = _trajectory(0)
    trajectory.rewards[...] = np.where(trajectory.actions > 0, 1.0, -1.0)
    trajectory.terminated[...] = True
    trajectory.truncated[...] = False
    trajectory.final_index = np.argwhere(trajectory.terminated).astype(np.int32)
    trajectory.final_obs = np.zeros((trajectory.final_index.shape[0], 3), np.float32)
    obs = torch.from_numpy(trajectory.obs[:-1]).flatten(0, 1)
    before = learner.module.forward_inference(obs).actions.mean()
    for _ in range(20):
        learner.update([trajectory])
    # The statistics change what the module sees, not what it has learnt to prefer.
    assert learner.module.forward_inference(obs).actions.mean() > before


def test_case_h1_four_updates_are_two_saved_and_two_more() -> None:
    batches = [[_trajectory(seed)] for seed in range(4)]
    whole, first = _learner(), _learner()
    for batch in batches:
        whole.update(batch)
    for batch in batches[:2]:
        first.update(batch)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = _learner()
    second.load_state_dict(torch.load(file, weights_only=True))
    for batch in batches[2:]:
        second.update(batch)
    _assert_same(whole, second)
    assert second.version == whole.version == 4


def test_case_h1_the_learning_rate_goes_on_where_it_was() -> None:
    settings = {"lr": 1e-3, "lr_schedule": "linear", "total_updates": 100}
    assert PPOSettings(**settings).lr_at(40) == pytest.approx(6e-4)
    learner = _learner(**settings)
    learner.load_state_dict({**learner.state_dict(), "version": 40})
    assert learner.update([_trajectory(0)])["train/lr"] == pytest.approx(6e-4)


def test_a_state_of_another_network_is_refused() -> None:
    other = Learner(PPOSettings(), build_module(ModelConfig(hidden=(9,)), OBS, ACT, seed=1))
    with pytest.raises(CheckpointError):
        _learner().load_state_dict(other.state_dict())


def test_case_b2_a_last_minibatch_of_one_leaves_finite_weights() -> None:
    learner = _learner(minibatch_size=64)
    metrics = learner.update([_trajectory(0, steps=65, envs=1)])
    assert all(np.isfinite(value) for value in metrics.values())
    assert torch.isfinite(learner.module.flat_parameters()).all()


def test_rows_that_never_happened_teach_nothing() -> None:
    clean, dirty = _trajectory(0), _trajectory(0)
    clean.num_executed[2:, 1] = dirty.num_executed[2:, 1] = 0
    for name in ("rewards", "log_probs", "values", "actions"):
        getattr(dirty, name)[2:, 1] = np.nan
    for trajectory in (clean, dirty):
        for flags in (trajectory.terminated, trajectory.truncated):
            flags[2:, 1] = False
        keep = [(t, b) not in {(t, 1) for t in range(2, 6)} for t, b in trajectory.final_index.tolist()]
        trajectory.final_obs, trajectory.final_index = trajectory.final_obs[keep], trajectory.final_index[keep]
    a, b = _learner(), _learner()
    a.update([clean])
    b.update([dirty])
    _assert_same(a, b)


def test_case_d2_a_gradient_that_is_not_finite_changes_nothing() -> None:
    learner = _learner()
    before = {name: tensor.clone() for name, tensor in learner.module.named_parameters()}
    trajectory = _trajectory(0)
    trajectory.rewards[0, 0] = np.inf
    metrics = learner.update([trajectory])
    assert metrics["train/skipped_updates"] > 0
    for name, tensor in learner.module.named_parameters():
        assert torch.equal(tensor, before[name])


def test_staleness_is_the_lag_of_what_happened() -> None:
    trajectory = _trajectory(0, version=3)
    trajectory.versions[0, 0] = 1
    assert staleness(trajectory, 5) == 4
    assert 2.0 < mean_staleness(trajectory, 5) < 2.3
    assert not is_too_stale(trajectory, 5, 4)
    assert is_too_stale(trajectory, 5, 3)
    trajectory.num_executed[0, 0] = 0
    assert staleness(trajectory, 5) == 2


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"gamma": 1.1}, "gamma"), ({"clip_low": 1.0}, "clip_low"), ({"lr_schedule": "linear"}, "total_updates")],
)
def test_impossible_settings_are_refused_by_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PPOSettings(**changes)
    assert refused.value.key == key


def _rank(rank: int, port: int, parts: list[list[Trajectory]], directory: str) -> None:
    torch.set_num_threads(1)
    parallel = DDP(rank, len(parts), master_addr="127.0.0.1", master_port=port, timeout_s=60.0)
    learner = _learner(parallel)
    metrics = [learner.update(parts[rank]) for _ in range(2)]
    torch.save((learner.module.state_dict(), metrics), Path(directory) / f"rank_{rank}.pt")
    parallel.close()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (2, 0)], ids=["even", "uneven", "one rank empty"])
def test_case_c2_two_ranks_give_what_one_would(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """Cases B3 and C2: however the trajectories are spread."""
    trajectories = [_trajectory(seed, steps=5) for seed in range(sum(sizes))]
    parts = [trajectories[: sizes[0]], trajectories[sizes[0] :]]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(rank, port, parts, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    alone = _learner()
    expected = [alone.update(trajectories) for _ in range(2)]
    for rank in range(2):
        state, metrics = torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True)
        for name, tensor in alone.module.state_dict().items():
            torch.testing.assert_close(state[name], tensor, atol=1e-5, rtol=1e-5, msg=name)
        for ours, theirs in zip(metrics, expected):
            assert ours["train/policy_loss"] == pytest.approx(theirs["train/policy_loss"], abs=1e-5)
