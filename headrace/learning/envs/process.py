"""ProcessVectorEnv: shards of a vector environment, each in a process of its own, behind the same contract.

A shard that dies, raises or does not answer in time becomes an EnvironmentFaultError that names its environments.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from headrace.core.errors import ConfigError, EnvironmentFaultError
from headrace.learning.envs.base import StepResult, VectorEnv

ShardFactory = Callable[[], VectorEnv]


class ProcessVectorEnv(VectorEnv):
    """Shards made by picklable `factories` (each returns a VectorEnv), stepped at the same time.

    Processes are spawned, so that they inherit no lock or thread; they end with their parent.
    """

    def __init__(self, factories: Sequence[ShardFactory], *, step_timeout_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._timeout_s = step_timeout_s
        self._shards: list[tuple[Connection, Any]] = []
        self._bounds: list[tuple[int, int]] = []
        self._steps = 0
        for factory in factories:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, factory), daemon=True)
            process.start()
            theirs.close()
            self._shards.append((ours, process))
        try:
            self._describe()
        except BaseException:
            self.close()
            raise

    def _describe(self) -> None:
        start = 0
        # A process imports its simulator first, which can take longer than any step.
        answers = [self._receive(index, "start", max(self._timeout_s, 60.0)) for index in range(len(self._shards))]
        for num_envs, *spaces in answers:
            if tuple(spaces) != tuple(answers[0][1:]):
                raise ConfigError("env.id", f"environment {start}", "its spaces differ from those of environment 0")
            self._bounds.append((start, start + num_envs))
            start += num_envs
        self.num_envs = start
        self.observation_space, self.action_space, self.max_episode_steps = answers[0][1:]

    def reset(self) -> np.ndarray:
        return np.concatenate(self._all("reset"))

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepResult:
        self._steps += 1
        parts = [(actions[a:b], None if active is None else active[a:b]) for a, b in self._bounds]
        answers: list[tuple[StepResult, int]] = self._all("step", parts)
        results = [result for result, _ in answers]
        self.faults = sum(faults for _, faults in answers)
        return StepResult(
            obs=np.concatenate([r.obs for r in results]),
            rewards=np.concatenate([r.rewards for r in results]),
            terminated=np.concatenate([r.terminated for r in results]),
            truncated=np.concatenate([r.truncated for r in results]),
            valid=np.concatenate([r.valid for r in results]),
            final_index=np.concatenate([r.final_index + a for r, (a, _) in zip(results, self._bounds, strict=True)]),
            final_obs=np.concatenate([r.final_obs for r in results]),
            episodes=[episode for r in results for episode in r.episodes],
        )

    def get_state(self) -> bytes | None:
        states = self._all("get_state")
        return None if any(state is None for state in states) else pickle.dumps(states)

    def set_state(self, state: bytes) -> np.ndarray:
        return np.concatenate(self._all("set_state", [(part,) for part in pickle.loads(state)]))

    def render_frame(self) -> np.ndarray | None:
        self._send(0, "render_frame", ())
        return self._receive(0, "render_frame", self._timeout_s)

    def close(self) -> None:
        for connection, _ in self._shards:
            connection.close()
        # A shard sees its pipe close and leaves; one that is stuck in its simulator is ended.
        for _, process in self._shards:
            process.join(timeout=0.5)
            if process.is_alive():
                process.kill()
                process.join()
        self._shards = []

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        for index in range(len(self._shards)):
            self._send(index, method, arguments[index] if arguments else ())
        deadline = time.monotonic() + self._timeout_s
        return [self._receive(index, method, deadline - time.monotonic()) for index in range(len(self._shards))]

    def _send(self, index: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._shards[index][0].send((method, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._dead(index, method) from None

    def _receive(self, index: int, method: str, timeout_s: float) -> Any:
        connection, process = self._shards[index]
        ready = wait([connection, process.sentinel], max(timeout_s, 0.0))
        if connection in ready:
            try:
                ok, answer = connection.recv()
            except (EOFError, ConnectionResetError):
                raise self._dead(index, method) from None
            if not ok:
                raise answer
            return answer
        if ready:
            raise self._dead(index, method)
        raise EnvironmentFaultError(
            f"{self._name(index)}: {method} did not answer within {self._timeout_s:g} s (env.step_timeout_s)"
        )

    def _dead(self, index: int, method: str) -> EnvironmentFaultError:
        process = self._shards[index][1]
        process.join(timeout=1.0)
        where = f"in {method} (vector step {self._steps})"
        return EnvironmentFaultError(f"{self._name(index)}: its process exited with code {process.exitcode} {where}")

    def _name(self, index: int) -> str:
        if index >= len(self._bounds):
            return f"env process {index}"
        first, stop = self._bounds[index]
        return f"env {first}" if stop == first + 1 else f"envs {first}-{stop - 1}"


def _serve(connection: Connection, factory: ShardFactory) -> None:
    """Main of a shard: answer calls until the parent's end of the pipe closes."""
    env: VectorEnv | None = None
    try:
        env = factory()
        connection.send((True, (env.num_envs, env.observation_space, env.action_space, env.max_episode_steps)))
        while True:
            method, arguments = connection.recv()
            answer = getattr(env, method)(*arguments)
            connection.send((True, (answer, env.faults) if method == "step" else answer))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    except (ConfigError, EnvironmentFaultError) as error:
        connection.send((False, error))
    finally:
        if env is not None:
            env.close()
