"""What travels between the roles. One type a message; arrays are NumPy, so that env ranks need no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces


@dataclass(slots=True)
class Observations:
    """obs [B, *obs] of env rank `source`: a question to the policy."""

    source: int
    obs: np.ndarray


@dataclass(slots=True)
class Actions:
    """The policy's answer: raw actions [B, (K,) *act], log_probs [B], values [B], and the version that gave them."""

    actions: np.ndarray
    log_probs: np.ndarray
    values: np.ndarray
    version: int


@dataclass(slots=True)
class EndOfStream:
    """Env rank `source` asks no more."""

    source: int


@dataclass(slots=True)
class Weights:
    """A module's whole state, flat [nbytes] uint8, after `version` updates; `checksum` is crc32 of the bytes."""

    version: int
    flat: np.ndarray
    checksum: int


@dataclass(frozen=True, slots=True)
class Spaces:
    """Observation and action space of one environment."""

    observation: spaces.Box
    action: spaces.Space
