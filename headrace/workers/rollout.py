"""The rollout role: answers observations with actions, in batches, under the newest weights it was given."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from headrace.core.errors import PeerDeadError
from headrace.learning.models.config import ModelConfig
from headrace.learning.models.mlp_module import build_module
from headrace.learning.models.rl_module import RLModule
from headrace.system import AsyncWork, Channel, Worker, concurrent
from headrace.system.comm.weight_sync import source_of
from headrace.workers.config import RolloutConfig
from headrace.workers.messages import Actions, EndOfStream, Observations, Spaces, Weights


class RolloutWorker(Worker):
    """Serves the env ranks `e` with `e % world_size == rank`.

    With `lockstep` it waits for every one of them before it infers, in rank order, so that the same seed gives the
    same actions; otherwise it infers at once for whoever has asked.
    """

    def __init__(
        self,
        model: ModelConfig,
        rollout: RolloutConfig,
        *,
        num_env_ranks: int,
        learner_group: str,
        num_learner_ranks: int,
        lockstep: bool,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self._model_config = model
        self._rollout = rollout
        self._sources = range(self.rank, num_env_ranks, self.world_size)
        self._learner_group = learner_group
        self._learner_rank = source_of(self.rank, num_learner_ranks)
        self._lockstep = lockstep
        self._seed = seed
        self._weights_lock = threading.Lock()
        self._version = 0
        self._module: RLModule | None = None
        self._generator = torch.Generator()

    def init_worker(self, spaces: Spaces) -> None:
        """Build the network. Its weights come with the first sync."""
        module = build_module(
            self._model_config,
            spaces.observation,
            spaces.action,
            num_action_chunks=self._rollout.num_action_chunks,
            seed=self._seed or 0,
        )
        self._module = module.inference_copy()
        if self._seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(int(np.random.SeedSequence([self._seed, self.rank]).generate_state(1)[0]))

    @concurrent
    def generate(self, input_channel: Channel, output_channel: Channel, explore: bool = True) -> int:
        """Answer until every env rank of this rank has said that it asks no more; returns the answers given."""
        open_sources = set(self._sources)
        answers = 0
        sending: list[AsyncWork[None]] = []
        while open_sources:
            with self.worker_timer("wait_observations"):
                questions = self._questions(input_channel, open_sources)
            if questions:
                with self.worker_timer("infer"):
                    replies = self._infer(questions, explore)
                for work in sending:  # the puts of the round before are done by now; this is where they would fail
                    work.wait()
                sending = []
                for question, reply in zip(questions, replies, strict=True):
                    work = output_channel.put(reply, key=question.source, async_op=True)
                    assert work is not None
                    sending.append(work)
                answers += len(questions)
        for work in sending:
            work.wait()
        return answers

    @concurrent
    def sync_model_from_actor(self) -> int:
        """Take the learner's next weights; returns the version held now. An older version never replaces a newer.

        Raises:
            PeerDeadError: the learner is gone, or its bytes were damaged on the way.
        """
        update: Weights = self.recv(self._learner_group, self._learner_rank)
        if zlib.crc32(update.flat.data) != update.checksum:
            raise PeerDeadError(f"weights of version {update.version} do not match their checksum")
        with self._weights_lock:
            if update.version >= self._version:
                assert self._module is not None, "call init_worker first"
                self._module.load_flat(torch.from_numpy(update.flat))
                self._version = update.version
            return self._version

    @concurrent
    def stop(self) -> None:
        """Nothing to end: `generate` ends when the env ranks ask no more."""

    def save_state(self, directory: Path) -> None:
        """Write the random stream."""
        torch.save(self._generator.get_state(), directory / f"rollout_rank_{self.rank}.pt")

    def load_state(self, directory: Path) -> bool:
        """Go on from `save_state`; False where this rank did not exist then."""
        path = directory / f"rollout_rank_{self.rank}.pt"
        if not path.exists():
            return False
        self._generator.set_state(torch.load(path, weights_only=True))
        return True

    def _questions(self, input_channel: Channel, open_sources: set[int]) -> list[Observations]:
        """The next questions, by source; sources that end are taken out of `open_sources`."""
        waiting_for = set(open_sources) if self._lockstep else set()
        questions: list[Observations] = []
        while True:
            for message in input_channel.get_available(key=self.rank):
                waiting_for.discard(message.source)
                if isinstance(message, EndOfStream):
                    open_sources.discard(message.source)
                else:
                    questions.append(message)
            if not waiting_for:
                return sorted(questions, key=lambda question: question.source)

    def _infer(self, questions: Sequence[Observations], explore: bool) -> list[Actions]:
        assert self._module is not None, "call init_worker first"
        obs = torch.from_numpy(np.concatenate([question.obs for question in questions]))
        with self._weights_lock:
            out = (
                self._module.forward_exploration(obs, self._generator)
                if explore
                else self._module.forward_inference(obs)
            )
            version = self._version
        ends = np.cumsum([len(question.obs) for question in questions])[:-1]
        columns = (np.split(tensor.numpy(), ends) for tensor in out)
        return [Actions(a, log_probs, values, version) for a, log_probs, values in zip(*columns, strict=True)]
