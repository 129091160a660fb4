"""One unit, made: read its inputs, compute, create its chunks, then its manifest. This is what a task does.

Every name follows from the unit. So a task that is run again, speculated or long given up creates what is there
already, and a unit whose manifest exists is done. Nothing here is visible to a reader of generations.

Errors: an input that is missing or cannot be read is named in the manifest, and the rest counts. A store that does not
answer fails the task.
"""

import asyncio
import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, Invalid, NotFound
from holdfast.objects.store import CREATE, Store, Written
from holdfast.pipeline.plan import Work
from holdfast.telemetry.frame import Batch, FrameInvalid, Limits, decode
from holdfast.telemetry.rollup import chunk, derive, layout
from holdfast.telemetry.rollup.derive import Chunk, Counted, Rolled
from holdfast.telemetry.rollup.extract import telemetry_of
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import ChunkRef, Kind, Unit, UnitManifest
from holdfast.telemetry.rollup.rollup import Rows
from holdfast.telemetry.rollup.taken import Taken, taken_by
from holdfast.telemetry.rollup.windows import Windows

READS = 32
WRITES = 16
DECODERS = 2


@dataclass(slots=True)
class _Spent:
    read_bytes: int = 0
    wrote_bytes: int = 0


async def unit_task(store: Store, payload: bytes) -> list[Document]:
    """A task: every unit in the payload, one after the other, so that memory holds one of them."""
    asked = json.loads(payload)
    windows, limits = Windows.of(asked["windows"]), Limits(*asked["limits"])
    return [await make(store, Work.of(each), windows, limits) for each in asked["work"]]


async def make(store: Store, work: Work, windows: Windows, limits: Limits) -> Document:
    """Make the unit if it is not there; what it gave."""
    found = await store.find(work.unit.key)
    if found is not None:
        try:
            return _row(UnitManifest.read(found), _Spent(), made=False)
        except (Corrupt, Incompatible):  # whoever publishes its hour finds the same, and leaves the hour as it is
            return _row(UnitManifest(work.unit, ()), _Spent(), made=False)
    spent = _Spent()
    if work.unit.kind is Kind.DAILY:
        hours, unreadable = await _rows(store, work, spent)
        if hours is None:
            return {**_row(UnitManifest(work.unit, ()), spent, made=False), "stale": True}
        counted, chunks = Counted(), await blocking(lambda: list(derive.daily_chunks(work.unit, hours, windows)))
    else:
        chunks, counted, unreadable = await _derived(store, work, windows, limits, spent)
    refs = await _create(store, chunks, spent)
    manifest = derive.manifest(work.unit, counted, refs, unreadable)
    await store.put(manifest.key, manifest.encode(), CREATE)
    return _row(manifest, spent, made=True)


async def derive_again(
    store: Store, work: Work, windows: Windows, limits: Limits
) -> tuple[list[Chunk], Counted, list[str]]:
    """What a unit of an hour would give now: its chunks, its records, and the inputs that cannot be read."""
    return await _derived(store, work, windows, limits, _Spent())


async def _derived(
    store: Store, work: Work, windows: Windows, limits: Limits, spent: _Spent
) -> tuple[list[Chunk], Counted, list[str]]:
    """Memory holds the records of one share, and the rows of all."""
    taken = await _taken(store, work, limits)
    start_ns = layout.hour_start_ns(work.unit.hour)
    rolled, indexed, counted, unreadable = Rolled(windows), list[Chunk](), Counted(), list[str]()

    def derive_from(batches: list[Batch]) -> None:
        telemetry = telemetry_of(batches, start_ns, start_ns + layout.HOUR_NS, taken)
        counted.add(telemetry)
        if work.unit.kind is Kind.INDEX:
            indexed.extend(derive.index_chunks(work.unit, telemetry))
        else:
            rolled.add(telemetry)

    for sources in work.in_shares():
        batches, missing = await _batches(store, work.unit, sources, limits, spent)
        unreadable += missing
        await blocking(derive_from, batches)
    chunks = indexed or await blocking(lambda: list(rolled.chunks(work.unit)))
    return chunks, counted, sorted(unreadable)


async def _batches(
    store: Store, unit: Unit, sources: Sequence[tuple[str, str]], limits: Limits, spent: _Spent
) -> tuple[list[Batch], list[str]]:
    hashes = {each.id: each.sha256 for each in unit.inputs}
    decoders = asyncio.Semaphore(DECODERS)
    unreadable: list[str] = []

    async def one(source: tuple[str, str]) -> Batch | None:
        ident, key = source
        try:
            body = (await store.get(key)).body
            spent.read_bytes += len(body)
            async with decoders:
                return await blocking(_decode, body, hashes[ident], limits)
        except (NotFound, FrameInvalid, Corrupt, Invalid):
            unreadable.append(ident)
            return None

    found = await map_bounded(sources, one, limit=READS)
    return [each for each in found if each is not None], unreadable


async def _taken(store: Store, work: Work, limits: Limits) -> Taken:
    async def load(row: Listed) -> Batch | None:
        try:
            return await blocking(_decode, (await store.get(row.blob_key)).body, row.frame_sha256, limits)
        except (NotFound, FrameInvalid, Corrupt, Invalid):
            return None

    return await taken_by(store, work.taken, load)


def _decode(body: bytes, sha256: str, limits: Limits) -> Batch:
    if hashlib.sha256(body).hexdigest() != sha256:
        raise Corrupt("the bytes are not those that were accepted")
    return decode(body, limits)


async def _rows(store: Store, work: Work, spent: _Spent) -> tuple[list[Rows] | None, list[str]]:
    """None if a chunk is gone: the hour has another generation since, and the day is planned again on top of that."""
    unreadable: set[str] = set()
    gone: set[str] = set()

    async def one(source: tuple[str, str]) -> Rows | None:
        ident, key = source
        try:
            body = (await store.get(key)).body
            spent.read_bytes += len(body)
            return await blocking(chunk.decode, body, key=key)
        except NotFound:
            gone.add(ident)
            return None
        except (Corrupt, Incompatible):
            unreadable.add(ident)
            return None

    found = await map_bounded(work.sources, one, limit=READS)
    return None if gone else [each for each in found if each is not None], sorted(unreadable)


async def _create(store: Store, chunks: Iterable[Chunk], spent: _Spent) -> list[ChunkRef]:
    """An existing key means done: its name follows from the same inputs. Its bytes may be packed in another way."""

    async def one(made: Chunk) -> ChunkRef:
        spent.wrote_bytes += len(made.body)
        if isinstance(await store.put(made.ref.key, made.body, CREATE), Written):
            return made.ref
        there = (await store.get(made.ref.key)).body
        return replace(made.ref, bytes=len(there), crc32=zlib.crc32(there))

    return await map_bounded(chunks, one, limit=WRITES)


def _row(manifest: UnitManifest, spent: _Spent, *, made: bool) -> Document:
    return {
        "unit": manifest.unit.id,
        "hour": manifest.unit.hour,
        "made": made,
        "inputs": len(manifest.unit.inputs),
        "records": manifest.records,
        "repeated": manifest.repeated,
        "doubtful": manifest.doubtful,
        "unreadable": len(manifest.unreadable),
        "lost": list(manifest.unreadable) if manifest.unit.kind is not Kind.DAILY else [],
        "chunks": len(manifest.chunks),
        "rows": sum(ref.rows for ref in manifest.chunks),
        "read_bytes": spent.read_bytes,
        "wrote_bytes": spent.wrote_bytes,
    }
