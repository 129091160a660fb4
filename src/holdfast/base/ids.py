"""Randomness and ids are injected; only this module uses the machine's source of randomness."""

import random
from dataclasses import dataclass, field
from typing import Self

from holdfast.base.clock import Clock, SystemClock


class Ids:
    """Draws ids from one random generator, so that a seeded generator makes a run repeatable."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def write_id(self) -> str:
        """Identifies one write: two writes of equal values differ in their bytes."""
        return f"{self._rng.getrandbits(96):024x}"

    def attempt(self) -> str:
        """Eight hex characters that identify one attempt in an object key."""
        return f"{self._rng.getrandbits(32):08x}"

    def unique(self) -> str:
        """A 128-bit id, unique for all time."""
        return f"{self._rng.getrandbits(128):032x}"


@dataclass(frozen=True)
class Ambient:
    """A clock, a random generator, and ids drawn from it."""

    clock: Clock
    rng: random.Random
    ids: Ids = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", Ids(self.rng))

    @classmethod
    def system(cls) -> Self:
        return cls(SystemClock(), random.SystemRandom())
