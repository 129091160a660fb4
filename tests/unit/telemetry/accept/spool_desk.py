"""What tests of spools share: a collector that lands in a scripted store, and a disk that is soon full."""

from collections.abc import Collection
from pathlib import Path

from holdfast.base.clock import Clock
from holdfast.base.errors import Unavailable
from holdfast.objects.client import Usage
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.sim import ingest_kit as kit
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import CollectorOptions
from holdfast.telemetry.accept.landing import SpoolCollector, SpoolOptions
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import FILE, Notes, Spool
from tests.unit.telemetry.accept.accept_desk import AcceptDesk


class SpoolDesk(AcceptDesk):
    def spooler(
        self, spool: Spool, *script: str, usage: Usage | None = None, interval_ms: int = 1_000
    ) -> SpoolCollector:
        def on_accepted(manifest: AcceptedManifest, submitted: Submission) -> None:
            self.effects.append((manifest.collector_id, submitted.frame_sha256))

        return SpoolCollector(
            spool,
            self.store(*script, usage=usage),
            self.ambient(),
            kit.authority(Acceptance.LOCAL_SPOOL),
            CollectorOptions("spooler"),
            kit.inspect,
            spooling=SpoolOptions(interval_ms),
            on_accepted=on_accepted,
        )


class TightDisk(Layer):
    """A disk with room for so many bytes, for objects and notes."""

    def __init__(self, clock: Clock, notes: Path, room: int) -> None:
        inner = MemoryStore(clock=clock)
        super().__init__(inner)
        self.room = room
        self.notes = TightNotes(notes, clock, self)
        self.objects = inner.shelf.objects

    @property
    def used(self) -> int:
        return self.notes.size + sum(len(found.body) for found in self.objects.values())

    def need(self, more: int) -> None:
        if self.used + more > self.room:
            raise Unavailable("No space left on device")

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key not in self.objects:
            self.need(len(body))
        return await super().put(key, body, mode)


class TightNotes(Notes):
    """Each takes a hundred bytes of the disk."""

    def __init__(self, folder: Path, clock: Clock, disk: TightDisk) -> None:
        super().__init__(folder / FILE, clock)
        self.disk = disk
        self.size = 0

    async def add(self, manifests: Collection[AcceptedManifest]) -> None:
        self.disk.need(100 * len(manifests))
        await super().add(manifests)
        self.size += 100 * len(manifests)

    async def clear(self) -> None:
        await super().clear()
        self.size = 0
