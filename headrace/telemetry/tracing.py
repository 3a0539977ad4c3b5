"""How long the stages of a step take."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator


class StageTimer:
    """Adds up seconds by stage until they are consumed. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self._seconds[stage] += self._clock() - start

    def consume(self) -> dict[str, float]:
        """Seconds by stage since the last call."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds
