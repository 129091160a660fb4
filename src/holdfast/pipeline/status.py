"""The status of the pipeline: how far the reconciler is, what is due, problems, who works. Only reads."""

from dataclasses import dataclass
from typing import Any

from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.objects.lease import LeaseState
from holdfast.objects.store import Store
from holdfast.pipeline import due, layout, problems
from holdfast.pipeline.checkpoint import Checkpoint, Checkpoints
from holdfast.pipeline.drive import JOBS
from holdfast.telemetry.rollup.layout import hour_name
from holdfast.telemetry.rollup.manifest import Kind


@dataclass(frozen=True, slots=True)
class Status:
    checkpoint: Checkpoint | None
    lag_s: float | None
    """Seconds since the moment through which everything is reconciled; None if nothing ever was."""
    due: dict[str, list[str]]
    """By kind, the hours."""
    problems: dict[str, int]
    drivers: dict[str, str]
    """By job, who works on it now."""

    def document(self) -> Document:
        at = self.checkpoint
        return {
            "through": None if at is None or not at.through_unix_ns else iso(at.through_unix_ns),
            "lag_s": None if self.lag_s is None else round(self.lag_s, 3),
            "full_scan": None if at is None or at.full_at_unix_ns is None else iso(at.full_at_unix_ns),
            "due": self.due,
            "problems": self.problems,
            "drivers": self.drivers,
        }


async def status(store: Store, ambient: Ambient) -> Status:
    checkpoint = await Checkpoints(store, ambient).read()
    marks = {str(kind): await due.marks(store, kind) for kind in Kind}
    return Status(
        checkpoint,
        lag_s(checkpoint, ambient),
        {kind: [hour_name(hour) for hour in hours] for kind, hours in marks.items()},
        await problems.count(store),
        await _drivers(store, ambient),
    )


def lag_s(checkpoint: Checkpoint | None, ambient: Ambient) -> float | None:
    if checkpoint is None or not checkpoint.through_unix_ns:
        return None
    return max(0.0, (ambient.clock.wall_ns() - checkpoint.through_unix_ns) / 1e9)


async def _drivers(store: Store, ambient: Ambient) -> dict[str, Any]:
    found: dict[str, str] = {}
    for job in JOBS:
        lease = await store.find(layout.lease_key(job))
        if lease is not None:
            state = LeaseState.parse(lease)
            if not state.expired(ambient.clock.wall_ns()):
                found[job] = state.owner_id
    return found
