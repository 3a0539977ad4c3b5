"""The env role: steps environments, asks the policy for actions, assembles trajectories where they arise."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np

from headrace.core.errors import ChannelClosedError, CheckpointError
from headrace.learning.connectors.action import ActionMapping
from headrace.learning.data.trajectory import EpisodeRecord, Trajectory, TrajectoryBuilder
from headrace.learning.envs.base import VectorEnv
from headrace.learning.envs.chunks import step_chunk
from headrace.learning.envs.config import EnvConfig
from headrace.learning.envs.make import make_vector_env
from headrace.learning.envs.play import play_episodes
from headrace.system import Channel, Worker, concurrent
from headrace.workers.config import RolloutConfig
from headrace.workers.messages import Actions, EndOfStream, Observations, Spaces

# Evaluation must not meet the training environments' random streams.
_EVAL_SEED_OFFSET = 1_000_003


class EnvWorker(Worker):
    """`num_envs` environments of one rank.

    A question (observations) goes to rollout rank `rank % num_rollout_ranks`; its answer comes back under this
    rank's key; a finished fragment goes to learner rank `rank % num_learner_ranks`.
    """

    def __init__(
        self,
        config: EnvConfig,
        rollout: RolloutConfig,
        *,
        num_rollout_ranks: int,
        num_learner_ranks: int,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._config = config
        self._rollout = rollout
        self._rollout_key = self.rank % num_rollout_ranks
        self._learner_key = self.rank % num_learner_ranks
        self._seed = seed
        self._stopping = threading.Event()
        self._mapping: ActionMapping | None = None
        self._env: VectorEnv | None = None
        self._obs: np.ndarray | None = None
        self._builder: TrajectoryBuilder | None = None

    def init_worker(self) -> Spaces:
        """Make the environments; their spaces are what the other roles are built from."""
        env = make_vector_env(self._config, seed=self._seed, rank=self.rank, num_ranks=self.world_size)
        self._env = env
        self._mapping = ActionMapping(env.action_space, self._config.action_mode)
        self._builder = TrajectoryBuilder(
            self._rollout.fragment_length,
            env.num_envs,
            chunk_size=self._rollout.num_action_chunks,
            env_rank=self.rank,
        )
        return Spaces(env.observation_space, env.action_space)

    @concurrent
    def interact(
        self,
        input_channel: Channel,
        output_channel: Channel,
        replay_channel: Channel,
        metric_channel: Channel,
        num_fragments: int | None = None,
    ) -> int:
        """Collect fragments and send each, whole, to the learner; `num_fragments` of them or until `stop`.

        Returns the number of fragments sent. A closed `replay_channel` ends the loop as `stop` does.
        """
        assert self._builder is not None, "call init_worker first"
        if self._obs is None:
            assert self._env is not None
            self._obs = self._env.reset()
            self._builder.start(self._obs)
        sent = 0
        try:
            while not self._stopping.is_set() and (num_fragments is None or sent < num_fragments):
                trajectory = self._collect(input_channel, output_channel)
                with self.worker_timer("send"):
                    replay_channel.put(trajectory, key=self._learner_key, weight=trajectory.num_env_steps)
                metric_channel.put((self.rank, trajectory.num_env_steps, trajectory.episodes))
                sent += 1
        except ChannelClosedError:
            self.logger.info("the replay channel is closed: %d fragments sent", sent)
        output_channel.put(EndOfStream(self.rank), key=self._rollout_key)
        return sent

    @concurrent
    def evaluate(self, input_channel: Channel, output_channel: Channel, num_episodes: int) -> list[EpisodeRecord]:
        """Play episodes in environments of their own; `num_episodes` in all ranks together. Training is untouched."""
        share = len(range(self.rank, num_episodes, self.world_size))
        records: list[EpisodeRecord] = []
        if share:
            records = self._play(input_channel, output_channel, share)
        output_channel.put(EndOfStream(self.rank), key=self._rollout_key)
        return records

    @concurrent
    def stop(self) -> None:
        """End `interact` after the fragment that is under way."""
        self._stopping.set()

    def save_state(self, directory: Path) -> bool:
        """Write what resuming exactly here needs; False where these environments cannot tell their state."""
        assert self._env is not None, "call init_worker first"
        state = self._env.get_state() if self._obs is not None else None
        if state is None:
            return False
        path = directory / f"env_rank_{self.rank}.pkl"
        path.write_bytes(pickle.dumps({"world_size": self.world_size, "env": state}))
        return True

    def load_state(self, directory: Path) -> bool:
        """Go on from `save_state`; False (and fresh episodes) where nothing fitting was saved.

        Raises:
            CheckpointError: the file cannot be read.
        """
        path = directory / f"env_rank_{self.rank}.pkl"
        if not path.exists():
            return False
        try:
            state = pickle.loads(path.read_bytes())
        except (pickle.UnpicklingError, EOFError) as broken:
            raise CheckpointError(f"{path}: {broken}; resume from an earlier checkpoint") from broken
        if state["world_size"] != self.world_size:
            return False
        assert self._env is not None and self._builder is not None, "call init_worker first"
        self._obs = self._env.set_state(state["env"])
        self._builder.start(self._obs)
        return True

    def _collect(self, input_channel: Channel, output_channel: Channel) -> Trajectory:
        assert self._env is not None and self._builder is not None and self._obs is not None
        builder, env = self._builder, self._env
        while not builder.is_full:
            answer = self._ask(self._obs, input_channel, output_channel)
            with self.worker_timer("env_step"):
                chunk = step_chunk(env, self._chunked(answer.actions))
            builder.append(answer.actions, answer.log_probs, answer.values, answer.version, chunk)
            self._obs = chunk.obs
        return builder.build()

    def _play(self, input_channel: Channel, output_channel: Channel, share: int) -> list[EpisodeRecord]:
        num_envs = min(share, self._config.num_envs)
        seed = None if self._seed is None else self._seed + _EVAL_SEED_OFFSET
        env = make_vector_env(self._config, num_envs=num_envs, seed=seed, rank=self.rank, num_ranks=self.world_size)
        try:
            return play_episodes(
                env, lambda obs: self._chunked(self._ask(obs, input_channel, output_channel).actions), share
            )
        finally:
            env.close()

    def _ask(self, obs: np.ndarray, input_channel: Channel, output_channel: Channel) -> Actions:
        with self.worker_timer("wait_actions"):
            output_channel.put(Observations(self.rank, obs), key=self._rollout_key, async_op=True)
            return input_channel.get(key=self.rank)

    def _chunked(self, actions: np.ndarray) -> np.ndarray:
        """[B, K, *act] as the environment understands them."""
        assert self._mapping is not None
        mapped = self._mapping(actions)
        return mapped if self._rollout.num_action_chunks > 1 else mapped[:, None]
