"""Play a checkpoint: episodes under the most likely actions, in this process, with a video where that is possible."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headrace.core.checkpoint import CheckpointManager
from headrace.core.config import build, load_recipe
from headrace.core.errors import CheckpointError, ConfigError, HeadraceError
from headrace.learning.connectors.action import ActionMapping
from headrace.learning.envs.base import VectorEnv
from headrace.learning.envs.chunks import step_chunk
from headrace.learning.envs.make import make_vector_env
from headrace.learning.envs.play import Act, play_episodes
from headrace.learning.models.mlp_module import build_module
from headrace.learning.models.rl_module import RLModule
from headrace.runners.config import EmbodiedRecipe

VIDEO_FPS = 30
GL_REMEDY = "no software GL was found: `apt-get install libegl1 libgl1-mesa-dri` brings one"
GL_BACKENDS = ("egl", "osmesa")
_EXIT_DRAWS_NOTHING = 3


class NothingToDrawError(HeadraceError):
    """The environment has no pictures."""


@dataclass(frozen=True)
class Evaluation:
    """Raw returns and lengths (environment steps) of the episodes played."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))


@dataclass(frozen=True)
class Player:
    """A policy out of a checkpoint, and the recipe it was trained by."""

    recipe: EmbodiedRecipe
    module: RLModule
    checkpoint: Path

    @classmethod
    def load(cls, path: str | Path) -> Player:
        """Read a checkpoint, or the latest one of a run.

        Raises:
            CheckpointError: there is none that is whole.
        """
        checkpoint = CheckpointManager.resolve(str(path))
        recipe = build(EmbodiedRecipe, load_recipe(checkpoint / "recipe.yaml", ()))
        recipe.make_importable()
        env = make_vector_env(recipe.env, num_envs=1, seed=recipe.seed)
        module = build_module(
            recipe.model,
            env.observation_space,
            env.action_space,
            num_action_chunks=recipe.rollout.num_action_chunks,
        )
        env.close()
        state = torch.load(checkpoint / "learner.pt", weights_only=True)
        if "module" not in state:
            raise CheckpointError(f"{checkpoint}: learner.pt holds no module")
        module.load_state_dict(state["module"])
        module.refresh()
        return cls(recipe, module.inference_copy(), checkpoint)

    def evaluate(self, num_episodes: int, seed: int | None = None) -> Evaluation:
        """Play `num_episodes` episodes."""
        env = make_vector_env(self.recipe.env, num_envs=min(num_episodes, self.recipe.env.num_envs), seed=seed)
        records = play_episodes(env, self._actor(env), num_episodes)
        env.close()
        return Evaluation(tuple(r.episode_return for r in records), tuple(r.length for r in records))

    def record(self, path: Path, *, max_frames: int = 600) -> Path:
        """Write a video (mp4) of one episode, at most `max_frames` decisions long.

        Raises:
            NothingToDrawError: the environment has no pictures.
            Whatever a machine without GL raises.
        """
        import imageio.v2 as imageio

        config = dataclasses.replace(
            self.recipe.env, env_kwargs={**self.recipe.env.env_kwargs, "render_mode": "rgb_array"}, vectorization="sync"
        )
        env = make_vector_env(config, num_envs=1, seed=self.recipe.seed)
        act = self._actor(env)
        obs = env.reset()
        with imageio.get_writer(path, fps=VIDEO_FPS, macro_block_size=8) as video:
            for _ in range(max_frames):
                frame = env.render_frame()
                if frame is None:
                    raise NothingToDrawError(config.id)
                video.append_data(frame)  # type: ignore[attr-defined]  # imageio's stubs know readers only
                chunk = step_chunk(env, act(obs))
                obs = chunk.obs
                if chunk.episodes:
                    break
        env.close()
        return path

    def _actor(self, env: VectorEnv) -> Act:
        mapping = ActionMapping(env.action_space, self.recipe.env.action_mode)
        chunked = self.recipe.rollout.num_action_chunks > 1

        def act(obs: np.ndarray) -> np.ndarray:
            actions = mapping(self.module.forward_inference(torch.from_numpy(obs)).actions.numpy())
            return actions if chunked else actions[:, None]

        return act


def record_video(checkpoint: Path, path: Path, *, timeout_s: float = 120.0) -> tuple[Path | None, str]:
    """Record in a process of its own (a broken GL may take its process down).

    Returns the video, or None and what would bring one.
    """
    for backend in GL_BACKENDS:
        command = [sys.executable, "-m", "headrace.evaluation", str(checkpoint), str(path)]
        environment = {**os.environ, "MUJOCO_GL": backend, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            return path, ""
        if done.returncode == _EXIT_DRAWS_NOTHING:
            return None, "the environment draws no pictures (it has no render mode rgb_array)"
    return None, GL_REMEDY


def _main(checkpoint: str, path: str) -> int:
    player = Player.load(checkpoint)
    try:
        player.record(Path(path))
    except (NothingToDrawError, ConfigError):  # a ConfigError: the constructor knows no render_mode
        return _EXIT_DRAWS_NOTHING
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
