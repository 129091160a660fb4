"""What a call of a run gives back, and how often things are tried."""

import math
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


def check_number(name: str, value: object, *, least: float = 0, most: float = math.inf, whole: bool = False) -> None:
    """``Invalid`` unless the argument is a finite number from ``least`` to ``most``."""
    kinds = (int,) if whole else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value) or not least <= value <= most:
        wanted = f"{'an integer' if whole else 'a number'} of at least {least:g}"
        raise Invalid(f"{name}={value!r:.80} is not {wanted}" + (f" and at most {most:g}" if most < math.inf else ""))


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
        check_number("attempts", self.attempts, least=1, whole=True)
        check_number("base_ms", self.base_ms)
        check_number("max_ms", self.max_ms)
        check_number("jitter", self.jitter, most=1)
        if not isinstance(self.on, tuple) or not all(isinstance(kind, type) for kind in self.on):
            raise Invalid(f"on={self.on!r} is not a tuple of exception classes", remedy="write on=(OSError,)")

    @staticmethod
    def check(retry: object) -> None:
        if not isinstance(retry, Retry):
            raise Invalid(f"retry={retry!r:.80} is not a Retry", remedy="write retry=runs.Retry(attempts=3)")

    def delay_ms(self, failures: int, ambient: Ambient) -> float:
        """How long to wait after the ``failures``-th failure."""
        full = min(float(self.max_ms), self.base_ms * 2.0 ** (failures - 1))
        return full * (1 - self.jitter * ambient.rng.random())

    def again(self, failures: int, error: BaseException) -> bool:
        return failures < self.attempts and isinstance(error, self.on)
