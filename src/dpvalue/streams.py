"""Public randomness: one independent stream for every (seed, purpose, index).

Streams do not depend on blocks or threads, so neither do their numbers.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dpvalue.arrays import Ints
from dpvalue.errors import require_count


class Purpose(IntEnum):
    """The purpose of a stream. The numbers never change, so that runs stay repeatable."""

    PERMUTATION = 0
    REPLAY = 1
    FAST_NOISE = 2
    INITIAL_MODEL = 3
    TUNING = 4
    RENOISE = 5
    TRAINING = 6
    PLANTING = 7
    SCREENING = 8
    AUDIT = 9
    ATTACK = 10
    CURVES = 11
    MONTE_CARLO = 12
    REFIT = 13
    LEARNING_CURVES = 14
    REHEARSAL = 15
    POSSIBLE_VALUES = 16
    FOREST = 17
    LEAF_BANDS = 18
    LEAF_GROUPS = 19


def stream(seed: int, purpose: Purpose, index: int = 0) -> np.random.Generator:
    """Return the generator of (seed, purpose, index)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose), index)))


def permutations(seed: int, purpose: Purpose, first: int, count: int, n: int) -> Ints:
    """Return the permutations `first`, ..., `first + count - 1` of n parties, one a row."""
    return np.stack([stream(seed, purpose, index).permutation(n) for index in range(first, first + count)])


def replay_seed(seed: int) -> int:
    """Return the seed of the permutations that a table is replayed over, from the public seed of its run."""
    return _hash(f"dpvalue replay {seed}".encode())


def replay_seed_of_rows(rows: NDArray[np.floating]) -> int:
    """Return the same for a simulation, derived from its noisy rows, because its own seed must stay secret.

    It uses only the signs of the rows, which do not depend on the device's rounding.
    """
    return _hash(b"dpvalue replay" + np.packbits(rows > 0).tobytes())


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big")


def require_seed(seed: int) -> None:
    """Raise unless `seed` is a whole number of at least 0."""
    require_count("seed", seed, least=0)
