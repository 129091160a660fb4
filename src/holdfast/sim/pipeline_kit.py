"""What scenarios of the pipeline share: small batches whose records are known, and steps that no journal records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.objects.store import ADDRESSED, CREATE, Lost, Store
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.submit import submission_of
from holdfast.telemetry.frame import Sequenced, decode, encode, pack_sequenced
from holdfast.telemetry.records import Gauge

HOUR_NS = 3_600 * 1_000_000_000
BOOT = "boot"


@dataclass(frozen=True, slots=True)
class Small:
    """One batch: records of one metric, each with its own number as its value."""

    agent: str
    start: int
    end: int
    hour: int
    crosses: bool = False
    """Its last record lies in the next hour."""

    @property
    def hours(self) -> dict[int, int]:
        """The hour of each sequence number."""
        last = self.hour + 1 if self.crosses else self.hour
        return {seq: last if seq == self.end else self.hour for seq in range(self.start, self.end + 1)}

    def body(self) -> bytes:
        records = [Sequenced(seq, Gauge("m", float(seq), hour * HOUR_NS + seq, {})) for seq, hour in self.hours.items()]
        return encode(pack_sequenced(self.agent, BOOT, records))

    def manifest(self, now_ns: int, write_id: str) -> AcceptedManifest:
        body = self.body()
        return submission_of(body, decode(body)).manifest(
            accepted_at_unix_ns=max(0, now_ns), collector_id="sim", authority_id=None, write_id=write_id
        )

    @property
    def key(self) -> str:
        path = layout.boot_path(self.agent, BOOT)
        return f"{layout.ACCEPTED}{path}{self.start:020d}-{self.end:020d}.json"


async def accept(store: Store, batch: Small, manifest: AcceptedManifest, *, refer: bool) -> AcceptedManifest:
    """As a collector does; without ``refer``, as one that dies right after. The manifest that stands."""
    await store.put(manifest.raw_blob_key, batch.body(), ADDRESSED)
    outcome = await store.put(manifest.key, manifest.encode(), CREATE)
    if isinstance(outcome, Lost):  # an earlier life had accepted it
        manifest = AcceptedManifest.read(outcome.current or await store.get(manifest.key))
    if refer:
        for reference in references.of_accepted(manifest):
            await references.write(store, reference)
    return manifest


async def gather(store: Store, manifests: Sequence[AcceptedManifest], now_ns: int) -> None:
    """What a collector writes of batches that it accepted within a moment."""
    for piece in references.pieces(manifests):
        for reference in references.made_from(piece, max(0, now_ns)):
            await references.write(store, reference)


@dataclass(frozen=True, slots=True)
class Straight:
    """Steps that are done and not recorded: a driver that forgets everything when it dies."""

    run_id: str

    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        return await function(*args)
