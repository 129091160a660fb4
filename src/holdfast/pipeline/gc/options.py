"""Settings of garbage collection, and its kinds."""

from dataclasses import dataclass, field

from holdfast.base.config import Settings
from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.layout import Windows, check_window, window_name, window_of

SECOND_NS = 1_000_000_000
HOUR_NS = 3_600 * SECOND_NS
DAY_NS = 24 * HOUR_NS

KINDS = {
    "orphans": "raw blobs that no manifest names",
    "derived": "chunks, units and generations that later ones have superseded",
    "ontology": "superseded snapshots, and attempts at commits that lost",
    "runs": "what deleted runs and lost attempts have left behind",
    "records": "records of the pipeline's own work",
    "expire-batches": "raw batches past retention, once rolled up and indexed",
    "expire-rollups": "windows of rollups past retention",
    "expire-runs": "finished runs past retention",
    "expire-events": "settled events past retention",
}
"""In the order in which they run: objects that one kind releases are removed by the next run of another."""


@dataclass(frozen=True)
class GcOptions:
    horizon_ns: int = 7 * DAY_NS
    """``ingest.retry_horizon_s``."""
    grace_ns: int = HOUR_NS
    """How long superseded objects stay for readers of an older generation, by the store's clock."""
    every_ns: int = DAY_NS
    apply: bool = False
    raw_batches_ns: int | None = None
    logs_ns: int | None = None
    rollups_ns: dict[str, int] = field(default_factory=dict)
    """How long chunks are kept, by the name of their window."""
    runs_ns: int | None = None
    events_ns: int | None = None
    records_ns: int | None = None

    def wanted(self, kinds: list[str]) -> list[str]:
        """These kinds, or all that have the settings they need."""
        off = self.off()
        return [kind for kind in KINDS if (kind in kinds if kinds else kind not in off)]

    def off(self) -> dict[str, str]:
        """Kinds that remove nothing, each with the setting that is missing."""
        ages = {
            "records": ("retention.records_s", self.records_ns),
            "expire-batches": ("retention.raw_batches_s", self.raw_batches_ns),
            "expire-rollups": ("retention.rollups", self.rollups_ns or None),
            "expire-runs": ("retention.runs_s", self.runs_ns),
            "expire-events": ("retention.events_s", self.events_ns),
        }
        return {kind: name for kind, (name, age) in ages.items() if age is None}


def gc_options(settings: Settings) -> GcOptions:
    kept = settings.retention
    return GcOptions(
        horizon_ns=settings.ingest.retry_horizon_s * SECOND_NS,
        grace_ns=settings.gc.grace_s * SECOND_NS,
        every_ns=settings.gc.every_s * SECOND_NS,
        apply=settings.gc.apply,
        raw_batches_ns=_ns(kept.raw_batches_s),
        logs_ns=_ns(kept.logs_s),
        rollups_ns=rollup_ages(kept.rollups),
        runs_ns=_ns(kept.runs_s),
        events_ns=_ns(kept.events_s),
        records_ns=_ns(kept.records_s),
    )


def rollup_ages(text: str) -> dict[str, int]:
    """``10s=30d,1m=90d``: how long the chunks of each window are kept. A window need not be one that is made now: hours
    may have chunks of windows that were made before.
    """
    found: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        window, equals, age = (each.strip() for each in part.partition("="))
        if not equals:
            raise Invalid(f"retention.rollups: {part!r} says no age", remedy="write it like 10s=30d,1m=90d")
        try:
            check_window(window_of(window))
            found[window_name(window_of(window))] = window_of(age)
        except Invalid as error:
            raise Invalid(f"retention.rollups: {part!r}: {error}", remedy="write it like 10s=30d,1m=90d") from error
    return found


def unmade(settings: Settings) -> list[str]:
    """Windows that ``retention.rollups`` names and ``pipeline.windows`` does not."""
    made = Windows.of(name.strip() for name in settings.pipeline.windows.split(",")).names
    return [window for window in rollup_ages(settings.retention.rollups) if window not in made]


def _ns(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * SECOND_NS
