"""What a wait reports: the cause, not its consequence."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from headrace.core.errors import PeerDeadError, WorkerError
from headrace.system.runtime.handle import Failure, Handle, Outcome, RankCall


def _handle(group: str) -> tuple[Handle, Future[Outcome]]:
    future: Future[Outcome] = Future()
    return Handle("run", [RankCall(group, 0, "run", "", future)]), future


def test_a_dead_peer_is_a_consequence_and_the_death_itself_is_reported() -> None:
    env, env_future = _handle("env")
    rollout, rollout_future = _handle("rollout")
    gone = PeerDeadError("rollout:0 is gone")
    env_future.set_result(Outcome(None, Failure("PeerDeadError: rollout:0 is gone", "", gone), 0.0))
    threading.Timer(0.05, lambda: rollout_future.set_exception(RuntimeError("the actor died"))).start()
    with pytest.raises(WorkerError, match=r"rollout rank 0: run\(\) failed: the process died \(the actor died\)"):
        env.wait(unless_failed=[rollout])


def test_a_dead_peer_is_reported_where_nothing_else_is_known() -> None:
    env, env_future = _handle("env")
    gone = PeerDeadError("rollout:0 is gone")
    env_future.set_result(Outcome(None, Failure("PeerDeadError: rollout:0 is gone", "", gone), 0.0))
    with pytest.raises(WorkerError, match="rollout:0 is gone") as caught:
        env.wait()
    assert caught.value.__cause__ is gone
