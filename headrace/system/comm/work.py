"""The handle of an operation that is under way: `wait`, `async_wait`, `done`, `then`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, TypeVar

from headrace.core.errors import WaitTimeoutError

T = TypeVar("T")
U = TypeVar("U")


class AsyncWork(Generic[T]):
    """An operation under way. `finish` turns the future's raw result into what the caller is given, once."""

    def __init__(self, future: Future[Any], finish: Callable[[Any], T], *, withdraw: Callable[[], None] | None = None):
        self._future = future
        self._finish = finish
        self._withdraw = withdraw
        self._result: list[T] = []

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        return self._future.done()

    def wait(self, timeout_s: float | None = None) -> T:
        """Block until the operation ends; its result, or its error raised.

        Raises:
            WaitTimeoutError: `timeout_s` passed; the operation goes on unless it can be withdrawn.
        """
        try:
            return self._done_with(self._future.result(timeout_s))
        except FutureTimeoutError:
            return self._at_deadline(timeout_s)

    async def async_wait(self, timeout_s: float | None = None) -> T:
        """`wait` for coroutines."""
        try:
            return self._done_with(await asyncio.wait_for(asyncio.wrap_future(self._future), timeout_s))
        except TimeoutError:
            return self._at_deadline(timeout_s)

    def then(self, function: Callable[..., U], *args: Any, **kwargs: Any) -> AsyncWork[U]:
        """An operation that ends with `function(*args, **kwargs)` after this one ended well."""
        return AsyncWork(self._future, lambda raw: (self._done_with(raw), function(*args, **kwargs))[1])

    def _at_deadline(self, timeout_s: float | None) -> T:
        if self._withdraw is not None:
            self._withdraw()
        # The result may have come between the deadline and the withdrawal: then it counts.
        if self._future.done():
            try:
                return self._done_with(self._future.result())
            except CancelledError:
                pass
        raise WaitTimeoutError(f"not done after {timeout_s} s")

    def _done_with(self, raw: Any) -> T:
        if not self._result:
            self._result.append(self._finish(raw))
        return self._result[0]
