"""The future of a group call: one result a rank, or the first failure with its rank, log and traceback."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import PeerDeadError, WaitTimeoutError, WorkerError

_LOG_TAIL_LINES = 15
CAUSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in a worker: the exception (where it can travel), its text and its traceback."""

    summary: str
    traceback: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended in one worker."""

    value: Any
    failure: Failure | None
    seconds: float


@dataclass(frozen=True, slots=True)
class RankCall:
    """One rank's part of a group call."""

    group: str
    rank: int
    method: str
    log_path: str
    future: Future[Outcome]


class Handle:
    """A group call under way."""

    def __init__(self, method: str, calls: Sequence[RankCall]) -> None:
        self.method = method
        self._calls = tuple(calls)

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return all(call.future.done() for call in self._calls) or bool(self._failed_calls())

    def wait(self, timeout_s: float | None = None, *, unless_failed: Sequence[Handle] = ()) -> list[Any]:
        """The results by rank. Returns as soon as one rank failed, by raising.

        unless_failed: other calls that this one depends on; if one of them fails, its error is raised instead.

        Raises:
            WorkerError: a rank raised, or its process died.
            WaitTimeoutError: not all ranks were done within `timeout_s`; the call goes on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        watched = [self, *unless_failed]
        while True:
            failed = [call for handle in watched for call in handle._failed_calls()]
            if failed:
                raise _error_of(_cause_among(failed, watched))
            open_futures = self._open_futures()
            if not open_futures:
                return [call.future.result().value for call in self._calls]
            others = [future for handle in unless_failed for future in handle._open_futures()]
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, _ = concurrent.futures.wait(
                open_futures + others, timeout=rest, return_when=concurrent.futures.FIRST_COMPLETED
            )
            if not done:
                open_ranks = [call.rank for call in self._calls if not call.future.done()]
                group = self._calls[0].group
                raise WaitTimeoutError(f"{group}.{self.method}(): ranks {open_ranks} not done after {timeout_s} s")

    async def async_wait(self, timeout_s: float | None = None) -> list[Any]:
        """`wait` for coroutines."""
        return await asyncio.to_thread(self.wait, timeout_s)

    def durations(self) -> list[float]:
        """Seconds the call took in each rank, without queueing. Waits."""
        self.wait()
        return [call.future.result().seconds for call in self._calls]

    def consume_duration(self, reduction_type: str = "max") -> float:
        """The ranks' seconds reduced by "max", "min" or "mean"."""
        seconds = self.durations()
        return {"max": max, "min": min, "mean": lambda values: sum(values) / len(values)}[reduction_type](seconds)

    def consume_durations(
        self, reduction_type: str = "max", return_per_rank: bool = False
    ) -> dict[str, float] | tuple[dict[str, float], list[dict[str, float]]]:
        """`consume_duration` under the method's name; with `return_per_rank` each rank's as well."""
        reduced = {self.method: self.consume_duration(reduction_type)}
        if return_per_rank:
            return reduced, [{self.method: seconds} for seconds in self.durations()]
        return reduced

    def _failed_calls(self) -> list[RankCall]:
        return [call for call in self._calls if call.future.done() and _failure_of(call) is not None]

    def _open_futures(self) -> list[Future[Outcome]]:
        return [call.future for call in self._calls if not call.future.done()]


def _cause_among(failed: list[RankCall], watched: Sequence[Handle]) -> RankCall:
    """The call to report. That a peer is dead is a consequence: the peer's own call will say why, in a moment."""
    deadline = time.monotonic() + CAUSE_TIMEOUT_S
    while True:
        causes = [call for call in failed if not _is_consequence(call)]
        open_futures = [future for handle in watched for future in handle._open_futures()]
        rest = deadline - time.monotonic()
        if causes or not open_futures or rest <= 0:
            return (causes or failed)[0]
        concurrent.futures.wait(open_futures, timeout=rest, return_when=concurrent.futures.FIRST_COMPLETED)
        failed = [call for handle in watched for call in handle._failed_calls()]


def _is_consequence(call: RankCall) -> bool:
    failure = _failure_of(call)
    return failure is not None and isinstance(failure.error, PeerDeadError)


def _error_of(call: RankCall) -> WorkerError:
    failure = _failure_of(call)
    assert failure is not None
    details = failure.traceback or _tail(call.log_path)
    error = WorkerError(call.group, call.rank, call.method, failure.summary, call.log_path, details)
    error.__cause__ = failure.error
    return error


def _failure_of(call: RankCall) -> Failure | None:
    death = call.future.exception()
    if death is not None:
        # Only the loss of the process itself arrives as an exception; what a method raises is an Outcome.
        return Failure(f"the process died ({_brief(death)})", "", death)
    return call.future.result().failure


def _brief(death: BaseException) -> str:
    """What Ray says of a death, without its general advice."""
    return " ".join(str(death).partition("Some common causes")[0].split())


def _tail(log_path: str) -> str:
    try:
        lines = Path(log_path).read_text(errors="replace").splitlines()
    except OSError:  # on another node, or never written: the error says where it would be
        return ""
    return "\n".join(["  last lines of its log:", *(f"  | {line}" for line in lines[-_LOG_TAIL_LINES:])])
