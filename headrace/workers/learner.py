"""The learner role: gathers trajectories, updates the policy, hands its weights down."""

from __future__ import annotations

import threading
import time
import zlib
from pathlib import Path

import torch

from headrace.core.errors import CheckpointError
from headrace.learning.data.trajectory import Trajectory
from headrace.learning.learners.config import PPOSettings
from headrace.learning.learners.learner import Learner
from headrace.learning.learners.parallel import DDP, Parallel, Single
from headrace.learning.learners.staleness import is_too_stale
from headrace.learning.models.config import ModelConfig
from headrace.learning.models.mlp_module import build_module
from headrace.system import Channel, Worker, concurrent
from headrace.system.comm.weight_sync import targets_of
from headrace.workers.config import RolloutConfig
from headrace.workers.messages import Spaces, Weights


class LearnerWorker(Worker):
    """One data-parallel rank: owns loss, optimiser and version.

    `trajectories_per_step` trajectories make a training step of this rank; at most as many wait beside the step
    that is under way, so that an env rank that runs ahead is held back by its channel.
    """

    def __init__(
        self,
        model: ModelConfig,
        settings: PPOSettings,
        rollout: RolloutConfig,
        *,
        trajectories_per_step: int,
        rollout_group: str,
        num_rollout_ranks: int,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self._model_config = model
        self._settings = settings
        self._rollout = rollout
        self._needed = trajectories_per_step
        self._rollout_group = rollout_group
        self._targets = targets_of(self.rank, self.world_size, num_rollout_ranks)
        self._seed = seed
        self._waiting: list[Trajectory] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._dropped_steps = 0
        self._global_step = 0
        self._learner: Learner | None = None

    def init_worker(self, spaces: Spaces) -> None:
        """Build network and optimiser, and meet the other ranks."""
        module = build_module(
            self._model_config,
            spaces.observation,
            spaces.action,
            num_action_chunks=self._rollout.num_action_chunks,
            seed=self._seed or 0,
        )
        self._learner = Learner(self._settings, module, self._meet(), seed=self._seed or 0)

    def set_global_step(self, global_step: int) -> None:
        self._global_step = global_step

    @concurrent
    def recv_rollout_trajectories(self, input_channel: Channel) -> int:
        """Take trajectories as long as the channel is open and there is room; returns how many were taken."""
        taken = 0
        for trajectory in input_channel.items(key=self.rank):
            with self._changed:
                self._changed.wait_for(lambda: len(self._waiting) < self._needed or self._stopping)
                self._waiting.append(trajectory)
                self._changed.notify_all()
            taken += 1
        return taken

    def run_training(self, wait_s: float = 10.0) -> dict[str, float] | None:
        """One training step on the next trajectories; None where not enough of them came within `wait_s`.

        All ranks train or none: a rank without data makes the others skip too.
        """
        learner = self._the_learner()
        with self.worker_timer("wait_data"):
            batch = self._take_batch(wait_s)
        ready = torch.tensor(float(batch is not None))
        learner.parallel.all_reduce_sum(ready)
        if batch is None or ready.item() < self.world_size:
            self._put_back(batch or [])
            return None
        with self.worker_timer("train"):
            metrics = learner.update(batch)
        steps = torch.tensor([float(sum(t.num_env_steps for t in batch)), float(self._dropped_steps)])
        trained, dropped = learner.parallel.all_reduce_sum(steps).tolist()
        self._dropped_steps = 0
        times = {f"stage/learner_{name}_s": seconds for name, seconds in self.pop_execution_times().items()}
        return {**metrics, "train/env_steps": trained, "train/dropped_env_steps": dropped, **times}

    def sync_model_to_rollout(self) -> int:
        """Send the weights to this rank's rollout ranks; returns their version."""
        learner = self._the_learner()
        if self._targets:
            flat = learner.module.flat_parameters().numpy()
            update = Weights(learner.version, flat, zlib.crc32(flat.data))
            for target in self._targets:
                self.send(update, self._rollout_group, target)
        return learner.version

    def save_checkpoint(self, directory: Path) -> None:
        """Write the learner's whole state; every rank has the same, rank 0 writes it."""
        if self.rank == 0:
            torch.save(self._the_learner().state_dict(), directory / "learner.pt")

    def load_checkpoint(self, directory: Path) -> int:
        """Take over a saved state; returns its version.

        Raises:
            CheckpointError: there is none, or it is of another network.
        """
        path = directory / "learner.pt"
        if not path.exists():
            raise CheckpointError(f"{path} does not exist: {directory} is no checkpoint of a learner")
        learner = self._the_learner()
        learner.load_state_dict(torch.load(path, weights_only=True))
        return learner.version

    @concurrent
    def stop(self) -> None:
        """Let go of trajectories that wait, so that `recv_rollout_trajectories` can drain its channel."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def close(self) -> None:
        """Leave the group of learner ranks."""
        if self._learner is not None:
            self._learner.parallel.close()

    def _take_batch(self, wait_s: float) -> list[Trajectory] | None:
        deadline = time.monotonic() + wait_s
        with self._changed:
            while True:
                self._drop_stale()
                if len(self._waiting) >= self._needed:
                    batch, self._waiting = self._waiting[: self._needed], self._waiting[self._needed :]
                    self._changed.notify_all()
                    return sorted(batch, key=lambda trajectory: trajectory.env_rank)
                rest = deadline - time.monotonic()
                if rest <= 0 or not self._changed.wait(rest):
                    return None

    def _drop_stale(self) -> None:
        version = self._the_learner().version
        kept = [t for t in self._waiting if not is_too_stale(t, version, self._settings.max_staleness)]
        if len(kept) < len(self._waiting):
            self._dropped_steps += sum(t.num_env_steps for t in self._waiting) - sum(t.num_env_steps for t in kept)
            self._waiting = kept
            self._changed.notify_all()

    def _put_back(self, batch: list[Trajectory]) -> None:
        with self._changed:
            self._waiting = batch + self._waiting

    def _meet(self) -> Parallel:
        if self.world_size == 1:
            return Single()
        host, port = self.rendezvous("learners")
        return DDP(self.rank, self.world_size, master_addr=host, master_port=port)

    def _the_learner(self) -> Learner:
        assert self._learner is not None, "call init_worker first"
        return self._learner
