"""What can be set about the pipeline, and what a job is given to work with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.base.config import Settings
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.pipeline.engine import Engine
from holdfast.pipeline.gc.options import GcOptions
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.rollup.layout import Windows

MINUTE_NS = 60 * 1_000_000_000

Say = Callable[[str, int, int], None]
"""Called with the step of a job, how many of its tasks have ended, and of how many; none of none while it waits."""


def unsaid(step: str, done: int, total: int) -> None:
    """For those who need not know."""


@dataclass(frozen=True)
class Options:
    overlap_ns: int = 10 * MINUTE_NS
    """An audit judges what is older."""
    full_scan_every_ns: int = 0
    """A service looks at all identities again after so long: batches without any reference are found in no other way.
    0 is never."""
    settle_ns: int = 0
    """How long after its end an hour becomes due; 0 takes what is there, ended or not."""
    merge_after_ns: int = 24 * 60 * MINUTE_NS
    """How long after its end and after it was last derived an hour is closed: what it has in small pieces is put
    together. 0 waits for neither."""
    windows: Windows = field(default_factory=Windows.of)
    batches_at_once: int = 20_000
    """That one run of the reconciler takes; the next run takes the rest."""
    records_per_unit: int = 2_000_000
    """About; it decides into how many buckets the agents of an hour are divided."""
    stale_hours: int = 3
    """What was not seen in the last so many hours of samples is gone, as far as the ontology is concerned."""
    lease_ttl_ms: int = 30_000
    limits: Limits = field(default_factory=Limits)
    gc: GcOptions = field(default_factory=GcOptions)
    settings: Settings = field(default_factory=Settings)
    """How other places are reached, such as reports in another bucket."""


@dataclass(frozen=True)
class Env:
    """What every job works with."""

    store: Store
    ambient: Ambient
    engine: Engine
    options: Options = field(default_factory=Options)
    say: Say = unsaid

    def progress(self, step: str) -> Callable[[int, int], None]:
        return lambda done, total: self.say(step, done, total)
