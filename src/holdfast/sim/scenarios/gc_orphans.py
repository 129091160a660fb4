"""Collectors of one authority beside the whole protocol of garbage collection: audits, adoption, records, expiry."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from holdfast.objects.store import CREATE, Store
from holdfast.pipeline import audited
from holdfast.pipeline.audited import Audited, Scope
from holdfast.pipeline.gc import orphans
from holdfast.pipeline.gc.options import Ask, GcOptions
from holdfast.pipeline.gc.record import Proof, Sweep, latest_proof, settle
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.gc import recorded
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.scenarios.ingest_accept import IngestAccept
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import expired, layout
from holdfast.telemetry.accept.expired import Expired
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.accept.resolutions import Resolution, Resolutions

IMPATIENT = GcOptions(horizon_ns=0, grace_ns=0)
"""No age keeps anything: what holds so holds whatever any clock says."""


@dataclass(frozen=True, kw_only=True)
class GcOrphans(IngestAccept):
    """Garbage collection without patience, beside collectors: every acknowledged batch has its bytes, or an expiry."""

    name: ClassVar[str] = "gc-orphans"

    collectors: int = 1
    keepers: int = 1
    audits: bool = True
    """An audit is put on record before each round; without one, nothing is touched."""
    proved: bool = False
    """There is an audit of the end of time already: fewer requests, for exploring."""
    expires: bool = False
    """What is accepted is let go at once: a resend must not come to stay."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        base = IngestAccept.drawn(rng)
        settings = {each.name: getattr(base, each.name) for each in fields(base)}
        settings |= {"keepers": rng.randint(1, 2), "expires": rng.random() < 0.5, "audits": rng.random() < 0.9}
        return cls(**settings)

    async def keep(self, process: Process) -> None:
        for number in range(self.rounds):
            await process.perform("keep", self.collect(process, f"{process.name}-{number}"), key=layout.BLOBS)
            await self._rest(process)

    async def collect(self, process: Process, run_id: str) -> None:
        store = process.store
        if self.audits and not self.proved:
            await self.audit(process)
        if self.resolved:
            await self.resolve(process)
        proof = await latest_proof(store) if not self.proved else Proof(1 << 61)
        proof_ns = None if proof is None else proof.through_ns
        out = Sweep(store, Ask("orphans", "00-100", run_id, True, 1 << 61, proof_ns, None, IMPATIENT))
        if self.expires:
            await self.expire(store, out)
        await self.sweep_orphans(process, out)
        await out.flush()
        await settle(store, run_id)

    async def sweep_orphans(self, process: Process, out: Sweep) -> None:
        """What the job's SQL chooses, by a plain listing: exploring every course takes thousands of sweeps."""
        store = process.store
        referred = {key.split("/")[5] async for key in store.keys(layout.ACCEPTED_BY_BLOB)}
        listed = [entry async for page in store.list(layout.BLOBS) for entry in page.entries]
        keeper = await orphans.keeper(store, process.ambient, kit.inspect)
        await orphans.sweep(keeper, [each for each in listed if layout.blob_hash(each.key) not in referred], out)

    async def audit(self, process: Process) -> None:
        """As an audit does: through a moment of the store's before it looks."""
        ident = process.ambient.ids.unique()
        began = audited.began_key(ident)
        await process.store.put(began, b"{}", CREATE)
        through = (await process.store.head(began)).modified_ns
        [key async for key in process.store.keys(layout.ACCEPTED)]
        record = Audited(ident, ident, (Scope.INGEST,), audited.SCAN, 1, through, through, through)
        await process.store.put(record.key, record.encode(process.ambient.ids.write_id()), CREATE)

    async def resolve(self, process: Process) -> None:
        """Everything that is on record as a conflict is decided."""
        resolutions = Resolutions(process.store, process.ambient)
        async for key in process.store.keys(layout.CONFLICTS):
            conflict = ConflictManifest.read(await process.store.get(key))
            await resolutions.decide(
                conflict.identity,
                conflict.submitted_frame_sha256,
                Resolution.EXISTING_IS_AUTHORITATIVE,
                by="operator",
                why="simulated",
            )

    async def expire(self, store: Store, out: Sweep) -> None:
        """The order of ``gc.batches``, of batches that are counted: the record, then the blob."""
        async for key in store.keys(layout.ACCEPTED):
            manifest = AcceptedManifest.read(await store.get(key))
            await self.let_go(store, manifest, out)

    async def let_go(self, store: Store, manifest: AcceptedManifest, out: Sweep) -> None:
        await expired.record(store, Expired.of_manifest(manifest, "simulated", ()))
        await out.remove(manifest.raw_blob_key, manifest.frame_bytes, "simulated")

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        yield from recorded(world.landings)
