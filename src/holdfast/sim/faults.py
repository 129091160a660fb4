"""What may go wrong, and how often: with a request on its way (``Faults``), and with a process (``Troubles``)."""

import random
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Self


@dataclass(frozen=True, slots=True)
class Faults:
    """Rates per request. What a rate cannot apply to (a duplicate read is only a read) goes undisturbed."""

    lost_request: float = 0.0
    """It never reaches the store; the client hears nothing."""
    lost_response: float = 0.0
    """It is served; the client hears nothing."""
    late: float = 0.0
    """The client gives up first; then the write lands."""
    duplicate: float = 0.0
    """The write is delivered twice; the client hears of one copy, and not always of the one that landed."""
    contended: float = 0.0
    """A conditional write is answered 409, and has no effect."""
    unavailable: float = 0.0
    """Answered 503, and has no effect."""
    slow: float = 0.0
    """Served, and answered much later."""

    @classmethod
    def drawn(cls, rng: random.Random, *, lost_response: float | None = None) -> Self:
        """Half of all kinds, at rates up to ten per cent. ``lost_response`` can be fixed."""
        rates = {field.name: rng.choice((0.0, 0.1)) * rng.random() for field in fields(cls)}
        if lost_response is not None:
            rates["lost_response"] = lost_response
        return cls(**rates)

    def thresholds(self) -> list[tuple[float, str]]:
        """The rates added up, so that one random number decides: below the first threshold, the first kind."""
        named = [(field.name, float(getattr(self, field.name))) for field in fields(self)]
        sums = accumulate(rate for _, rate in named)
        return [(total, name) for (name, rate), total in zip(named, sums, strict=True) if rate > 0]


@dataclass(frozen=True, slots=True)
class Outage:
    """The store answers every request of a while with 503."""

    begins_s: float = 0.0
    lasts_s: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(rng.uniform(0, 1), rng.choice((0.0, 0.0, 0.3, 3.0)))

    def goes_on(self, now_s: float) -> bool:
        return self.begins_s <= now_s < self.begins_s + self.lasts_s


@dataclass(frozen=True, slots=True)
class Troubles:
    """What happens to processes while they work, each at a random moment, to a random one."""

    crashes: int = 0
    restarts: bool = True
    """A crashed process comes back after a while, with a new memory."""
    pauses: int = 0
    pause_ms: float = 1_000
    """The longest pause."""
    jumps: int = 0
    """Corrections of a wall clock."""
    skew_ms: float = 0
    """How far the wall clocks are off at first, and how far they jump: at most this, in either direction."""
    drift_ppm: float = 0
    within_ms: float = 2_000
    """Everything happens in this time."""

    @classmethod
    def drawn(cls, rng: random.Random, *, within_ms: float = 2_000) -> Self:
        skew_ms = rng.choice((0.0, 20.0, 5_000.0))
        return cls(
            crashes=rng.choice((0, 0, 1, 2)),
            restarts=rng.random() < 0.8,
            pauses=rng.choice((0, 1, 3)),
            pause_ms=rng.choice((50.0, 1_000.0, 10_000.0)),
            jumps=rng.choice((0, 1, 2)) if skew_ms else 0,
            skew_ms=skew_ms,
            drift_ppm=rng.choice((0.0, 200.0)) if skew_ms else 0.0,
            within_ms=within_ms,
        )


NO_FAULTS = Faults()
NO_TROUBLES = Troubles()
NO_OUTAGE = Outage()
