"""What a call of a run gives back, and how often things are tried."""

from dataclasses import dataclass
from typing import Any, Literal

from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient

Status = Literal["success", "suspended", "sleeping", "failed", "cancelled", "running"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a run stands after a call.

    ``suspended`` waits for ``event``; ``sleeping`` waits until ``wake_at_ns``; ``failed`` will be tried again at
    ``wake_at_ns`` if that is set, and is final otherwise; ``running`` is in the hands of another process.
    """

    run_id: str
    status: Status
    result: Any = None
    error: str | None = None
    event: str | None = None
    wake_at_ns: int | None = None
    session: int = 0

    @property
    def finished(self) -> bool:
        return self.status in ("success", "cancelled") or (self.status == "failed" and self.wake_at_ns is None)

    def unwrap(self) -> Any:
        """The result of a run that must have succeeded."""
        if self.status != "success":
            raise Invalid(
                f"run {self.run_id} has no result: it is {self.status}" + (f": {self.error}" if self.error else "")
            )
        return self.result


@dataclass(frozen=True, slots=True)
class Retry:
    """How often something that fails is tried, and how long to wait in between.

    Delays double from ``base_ms`` up to ``max_ms``, each shortened by up to ``jitter``. Errors not in ``on`` are final.
    """

    attempts: int = 3
    base_ms: int = 250
    max_ms: int = 30_000
    jitter: float = 0.5
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base_ms < 0 or self.max_ms < 0 or not 0 <= self.jitter <= 1:
            raise Invalid(f"{self} makes no sense", remedy="attempts >= 1, delays >= 0, jitter between 0 and 1")

    def delay_ms(self, failures: int, ambient: Ambient) -> float:
        """How long to wait after the ``failures``-th failure."""
        full = min(float(self.max_ms), self.base_ms * 2.0 ** (failures - 1))
        return full * (1 - self.jitter * ambient.rng.random())

    def again(self, failures: int, error: BaseException) -> bool:
        return failures < self.attempts and isinstance(error, self.on)
