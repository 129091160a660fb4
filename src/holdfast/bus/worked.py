"""What a runner tells of itself."""

from dataclasses import dataclass


@dataclass(slots=True)
class Worked:
    """What a runner has done so far."""

    handled: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    """Events that another worker took over while this one was at them."""
    handed_back: int = 0
    fired: int = 0
    """Ticks of schedules that this runner published."""
    in_flight: int = 0
    waiting: int = 0
    """Open events that are in no handler of this runner, as of the last look; per handler that takes them."""
