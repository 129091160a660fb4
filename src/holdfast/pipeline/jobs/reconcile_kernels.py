"""Kernels of the job ``reconcile``: what its tasks do with rows that the SQL has chosen (``jobs/reconcile``).

``Verify`` reads the manifest and the bytes of a batch, writes missing references and says in which hours the batch
has records. ``Cover`` adds sequence numbers to the registers of known ones. ``Around`` lists manifests next to batches
whose numbers were known. ``ReadListings`` and ``WriteListings`` read and write what the hours list.

Every kernel may run twice: what it writes has a name that follows from its rows, or is the same set union again. What
is wrong with one batch is recorded (``problems``) by the task that found it; only a store that does not answer
fails a task.

Requests for a batch found by its reference: three GET (reference, manifest, bytes) and two HEAD; for one found by its
manifest: two GET, two HEAD, and a PUT and a GET to make sure of its reference by time; besides, one PUT for each other
reference that is missing.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, Invalid, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.client import ambient_of
from holdfast.objects.register import Register
from holdfast.objects.store import Object, Store
from holdfast.pipeline import due, layout, problems
from holdfast.pipeline.engine.protocol import grouped
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept import references
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.accept.reconcile import BROKEN, Coverage, Finding, Problem, Share, neighbours_after, shares
from holdfast.telemetry.discover import NoBatch, reference_id, resolve
from holdfast.telemetry.frame import Batch, FrameInvalid, Limits, decode
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup import listing
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Kind, read_generation

log = logger("pipeline")

AT_ONCE = 16
"""Batches, or listings, under way in a task."""
DECODERS = 2
"""Frames that are unpacked at a time: each may take a hundred times its size."""
BATCHES_AT_ONCE = 500
"""Rows of a task that are looked at before they are given on."""
COVERED_AT_ONCE = 20_000
"""Batches in one edit of a register."""
MOST_LISTED = 50_000
"""Batches in one listing."""

BATCH = [
    ("manifest_id", pa.string()),
    ("agent", pa.string()),
    ("boot", pa.string()),
    ("seq_start", pa.int64()),
    ("seq_end", pa.int64()),
    ("frame_sha256", pa.string()),
    ("blob_key", pa.string()),
    ("frame_bytes", pa.int64()),
    ("accepted_at_ns", pa.int64()),
]
"""An accepted batch; these columns are those of a listing."""
SHARE = [("records", pa.int64()), ("first_ns", pa.int64()), ("last_ns", pa.int64())]
"""What a batch has in an hour."""


def rows_of(schema: pa.Schema, rows: Iterable[Document]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema)


# --- one batch, looked at closely ---

LOOKED = pa.schema(
    [
        ("key", pa.string()),  # what was looked at: a reference, a manifest or a conflict
        ("place", pa.int64()),  # 0 for the first row of a key; figures of the batch are in that row only
        *BATCH,  # NULL if there is nothing to count
        ("shard", pa.int64()),  # of the registers of known numbers
        ("hour", pa.int64()),  # NULL for a batch that has records in no hour
        *SHARE,
        ("waiting", pa.bool_()),  # a reference that leads to no accepted batch, yet or for ever
        ("reference", pa.string()),  # id of a reference by time that a first scan need not leave to the next look
        ("expired", pa.bool_()),  # its bytes were removed by retention: its numbers stay taken
        ("broken", pa.bool_()),  # it could not be read
        ("problems", pa.int64()),
        ("wrote", pa.int64()),  # references that were missing
        ("read_bytes", pa.int64()),
    ]
)


@dataclass(slots=True)
class Row:
    """What is known of one key."""

    key: str
    manifest: AcceptedManifest | None = None
    """None if there is nothing to count."""
    shares: list[Share] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    expired: bool = False
    reference: str | None = None
    """The key of its reference by time; None if the manifest cannot be read."""
    written_ns: int = 0
    """When the manifest was written, by the store's clock."""
    referred: bool = False
    """Its reference by time was missing, or did not count."""
    waiting: bool = False
    wrote: int = 0
    read_bytes: int = 0

    def documents(self, from_ns: int | None) -> Iterator[Document]:
        """One row for each hour; one if there is none. ``from_ns``: when a first scan began."""
        batch = {} if self.manifest is None else _batch_columns(self.manifest)
        first = {
            "waiting": self.waiting,
            "reference": None if from_ns is None else self._given(from_ns),
            "broken": any(each.finding in BROKEN for each in self.problems),
            "problems": len(self.problems),
            "wrote": self.wrote,
            "read_bytes": self.read_bytes,
        }
        spent = {"waiting": False, "broken": False, "problems": 0, "wrote": 0, "read_bytes": 0}
        for place, share in enumerate(self.shares or [None]):
            own = {} if share is None else {name: getattr(share, name) for name in Share.__slots__}
            figures = spent if place else first
            yield {"key": self.key, "place": place, "expired": self.expired, **batch, **own, **figures}

    def _given(self, from_ns: int) -> str | None:
        """The id of its reference by time, if that was written since the scan began, or may have been."""
        if self.reference is None or not (self.written_ns >= from_ns or self.referred):
            return None
        return reference_id(self.reference).hex()


def _batch_columns(manifest: AcceptedManifest) -> Document:
    identity = manifest.identity
    return {
        **_identity_columns(identity),
        "shard": layout.shard_of(identity.agent_id),
        "frame_sha256": manifest.frame_sha256,
        "blob_key": manifest.raw_blob_key,
        "frame_bytes": manifest.frame_bytes,
        "accepted_at_ns": manifest.accepted_at_unix_ns,
    }


@dataclass(frozen=True)
class Verify:
    """Look at the references, manifests and conflicts whose keys are given."""

    limits: Limits
    from_ns: int | None = None
    """When a first scan began, by the store's clock."""
    schema: pa.Schema = LOOKED

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        examiner = Examiner(store, self.limits)
        async for batch in given:
            keys = batch.column("key").to_pylist()
            for start in range(0, len(keys), BATCHES_AT_ONCE):
                looked = await map_bounded(keys[start : start + BATCHES_AT_ONCE], examiner.look, limit=AT_ONCE)
                await problems.record(store, ambient_of(store), [each for row in looked for each in row.problems])
                yield rows_of(LOOKED, (document for row in looked for document in row.documents(self.from_ns)))


class Examiner:
    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._decoders = asyncio.Semaphore(DECODERS)

    async def look(self, key: str) -> Row:
        row = Row(key)
        try:
            if key.startswith(ingest.ACCEPTED_BY_TIME):
                await self._by_reference(row)
            elif key.startswith(ingest.CONFLICTS):
                await self._conflict(row)
            else:
                await self._by_manifest(row, key)
        except _Expired as found:
            row.manifest, row.shares, row.expired = found.manifest, [], True
        except _Found as found:
            row.manifest, row.shares = None, []
            row.problems.append(found.problem)
        return row

    async def _by_reference(self, row: Row) -> None:
        if not ingest.is_by_time(row.key):
            raise _Found(Finding.FOREIGN_OBJECT, row.key, "its name is not that of a reference")
        try:
            found = await resolve(self._store, row.key)
        except NotFound:
            found = NoBatch.NO_MANIFEST
        except (Corrupt, Incompatible) as error:
            key = await self._named(row.key)
            raise _Found(_finding(error, Finding.CORRUPT_MANIFEST), key, str(error)) from error
        if isinstance(found, NoBatch):
            row.waiting = True
            return
        await self._look(row, found.manifest, found.written_ns)

    async def _named(self, key: str) -> str:
        """The manifest that cannot be read, or the reference that leads to none."""
        try:
            return references.named_manifest(await self._store.get(key))
        except (NotFound, Corrupt, Incompatible):
            return key

    async def _by_manifest(self, row: Row, key: str) -> None:
        identity = ingest.identity_in(key)
        if identity is None or key != ingest.accepted_key(identity):
            raise _Found(Finding.FOREIGN_OBJECT, key, "its name is not that of a manifest")
        found = await self._get(key, Finding.CORRUPT_MANIFEST)
        try:
            manifest = AcceptedManifest.read(found)
        except (Corrupt, Incompatible) as error:
            raise _Found(_finding(error, Finding.CORRUPT_MANIFEST), key, str(error)) from error
        await self._look(row, manifest, found.modified_ns)
        await self._refer_by_time(row, manifest, found.modified_ns)

    async def _look(self, row: Row, manifest: AcceptedManifest, accepted_ns: int) -> None:
        row.written_ns = accepted_ns
        with suppress(ValueError, OverflowError):  # its time of acceptance is invalid
            row.reference = references.by_time(manifest).key
        batch = await self._batch(row, manifest, accepted_ns)
        row.manifest = manifest
        row.shares, future = shares(batch, manifest.limits)
        if future:
            message = f"{future} of its {len(batch)} records are dated outside of the times that it may have"
            row.problems.append(Problem(Finding.FUTURE_CLOCK, manifest.key, message))
        await self._refer(row, references.of_bytes(manifest))

    async def _batch(self, row: Row, manifest: AcceptedManifest, accepted_ns: int) -> Batch:
        """``accepted_ns`` is when the manifest was written, by the store's clock. Bytes come before it: later ones were
        sent again, perhaps after retention had removed them.
        """
        key = manifest.key
        try:
            stored = await self._store.get(manifest.raw_blob_key)
            body = stored.body
            if stored.modified_ns > accepted_ns and await find_expired(self._store, manifest.identity) is not None:
                raise _Expired(manifest)
        except NotFound:
            if await find_expired(self._store, manifest.identity) is not None:
                raise _Expired(manifest) from None
            raise _Found(Finding.MISSING_BLOB, key, f"its bytes are not at {manifest.raw_blob_key}") from None
        except Invalid as error:
            raise _Found(Finding.CORRUPT_MANIFEST, key, str(error)) from error
        row.read_bytes += len(body)
        async with self._decoders:
            return await blocking(self._decode, manifest, body)

    def _decode(self, manifest: AcceptedManifest, body: bytes) -> Batch:
        digest = hashlib.sha256(body).hexdigest()
        if digest != manifest.frame_sha256:
            message = f"the bytes at {manifest.raw_blob_key} have the hash {digest}, not {manifest.frame_sha256}"
            raise _Found(Finding.CORRUPT_BLOB, manifest.key, message)
        try:
            batch = decode(body, self._limits)
        except FrameInvalid as error:
            raise _Found(Finding.UNREADABLE_FRAME, manifest.key, f"{manifest.raw_blob_key}: {error}") from error
        own, named = batch.identity, manifest.identity
        if (own.agent_id, own.boot_id, own.seq_start, own.seq_end) != (
            named.agent_id,
            named.boot_id,
            named.seq_start,
            named.seq_end,
        ):
            raise _Found(Finding.CORRUPT_MANIFEST, manifest.key, f"its bytes are those of batch {own}")
        return batch

    async def _conflict(self, row: Row) -> None:
        identity, name = ingest.identity_in(row.key), row.key.rpartition("/")[2].removesuffix(".json")
        if identity is None or len(name) != 64 or row.key != f"{ingest.conflict_folder(identity)}{name}.json":
            raise _Found(Finding.FOREIGN_OBJECT, row.key, "its name is not that of a conflict")
        found = await self._get(row.key, Finding.CORRUPT_MANIFEST)
        try:
            conflict = ConflictManifest.read(found)
        except (Corrupt, Incompatible) as error:
            raise _Found(_finding(error, Finding.CORRUPT_MANIFEST), row.key, str(error)) from error
        await self._refer(row, [references.of_conflict(conflict)])

    async def _refer_by_time(self, row: Row, manifest: AcceptedManifest, manifest_ns: int) -> None:
        try:
            row.referred = await references.refer(self._store, manifest, manifest_ns)
            row.wrote += row.referred
        except (ValueError, OverflowError) as error:
            message = f"its time of acceptance is invalid ({error})"
            row.problems.append(Problem(Finding.FUTURE_CLOCK, manifest.key, message))

    async def _refer(self, row: Row, wanted: Iterable[references.Reference]) -> None:
        """Write the references that are not there."""
        for reference in wanted:
            try:
                await self._store.head(reference.key)
            except NotFound:
                await references.write(self._store, reference)
                row.wrote += 1

    async def _get(self, key: str, otherwise: Finding) -> Object:
        try:
            return await self._store.get(key)
        except NotFound as error:
            raise _Found(otherwise, key, str(error)) from error


class _Expired(Exception):
    """The bytes of this batch were removed by retention. Its numbers stay taken, so others must know of it."""

    def __init__(self, manifest: AcceptedManifest) -> None:
        super().__init__(manifest.key)
        self.manifest = manifest


class _Found(Exception):
    """Something is wrong with this batch; the others continue."""

    def __init__(self, finding: Finding, key: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(finding, key, message)


def _finding(error: Exception, otherwise: Finding) -> Finding:
    return Finding.UNKNOWN_SCHEMA if isinstance(error, Incompatible) else otherwise


# --- which sequence numbers are known ---

AGAIN = pa.schema(
    [
        ("manifest_id", pa.string()),
        ("agent", pa.string()),
        ("boot", pa.string()),
        ("seq_start", pa.int64()),
        ("seq_end", pa.int64()),
        ("longest", pa.int64()),  # the most numbers that one batch of this agent and boot has had
        ("failed", pa.bool_()),  # the register of its shard cannot be read, so it is not covered
    ]
)
COVERAGE_FORMAT = "holdfast.pipeline.coverage"


class _CoverageShape:
    def read(self, document: Document, key: str) -> Document:
        codec.expect(document, format_name=COVERAGE_FORMAT, newest=1, key=key)
        return {"sources": document.get("sources", {})}

    def write(self, value: Document, previous: Document | None) -> Document:
        return {**(previous or {}), "format": COVERAGE_FORMAT, "version": 1, **value}


@dataclass(frozen=True)
class Cover:
    """Add batches to the registers of known sequence numbers; gives those of which a number was, or may be, known.

    A batch is covered before it is listed. So of two batches that overlap, in whatever runs they are found, the second
    one to be covered is given here, and a listing of the manifests around it finds the first. Rows come by shard.
    """

    run_id: str
    schema: pa.Schema = AGAIN

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for rows in grouped(given, ("shard",), most=COVERED_AT_ONCE):
            identities = [BatchIdentity(row["agent"], row["boot"], row["seq_start"], row["seq_end"]) for row in rows]
            yield rows_of(AGAIN, await self._cover(store, layout.coverage_key(rows[0]["shard"]), identities))

    async def _cover(self, store: Store, key: str, identities: Sequence[BatchIdentity]) -> list[Document]:
        register: Register[Document] = Register(store, key, _CoverageShape(), ambient_of(store))
        names = "\n".join(sorted(each.manifest_id for each in identities))
        operation_id = f"{self.run_id}/{hashlib.sha256(names.encode()).hexdigest()[:32]}"
        again: set[BatchIdentity] = set()
        known = Coverage()

        def change(value: Document | None) -> Document:
            nonlocal again, known
            known = Coverage.of(value, key)
            again = known.add_all(identities)
            return known.document()

        try:
            edited = await register.edit(operation_id, change)
        except (Corrupt, Incompatible) as error:
            found = [Problem(Finding.NOT_COVERED, ingest.accepted_key(each), str(error)) for each in identities]
            await problems.record(store, ambient_of(store), found)
            return [_again(each, 0, failed=True) for each in identities]
        if edited.replayed:  # an earlier try did it, and which numbers it found known is lost with it
            known = Coverage.of(edited.value, key)
            again = set(identities)
        return [_again(each, known.longest(each), failed=False) for each in sorted(again)]


def _again(identity: BatchIdentity, longest: int, *, failed: bool) -> Document:
    return {**_identity_columns(identity), "longest": longest, "failed": failed}


def _identity_columns(identity: BatchIdentity) -> Document:
    return {
        "manifest_id": identity.manifest_id,
        "agent": identity.agent_id,
        "boot": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
    }


AROUND = pa.schema([("key", pa.string()), *BATCH[:5]])


@dataclass(frozen=True)
class Around:
    """List the manifests that may overlap the batches given. Rows come by agent and boot, in order of their numbers, so
    neighbouring batches share a listing.
    """

    schema: pa.Schema = AROUND

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            found: list[Document] = []
            for _, own in groupby(batch.to_pylist(), lambda row: (row["agent"], row["boot"])):
                for begin, row in _spans(list(own)):
                    found += await self._between(store, begin, row)
            yield rows_of(AROUND, found)

    async def _between(self, store: Store, begin: str, last: Document) -> list[Document]:
        found: list[Document] = []
        folder = f"{ingest.ACCEPTED}{ingest.boot_path(last['agent'], last['boot'])}"
        async for key in store.keys(folder, after=begin):
            other = ingest.identity_in(key)
            if other is None or key != ingest.accepted_key(other):
                continue
            if other.seq_start > last["seq_end"]:
                break
            found.append({"key": key, **_identity_columns(other)})
        return found


def _spans(rows: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    """Where a listing begins, and the row at whose last number it ends; touching ones as one."""
    begin, last = "", None
    for row in rows:
        if last is not None and row["seq_start"] <= last["seq_end"] + 1:
            last = row if row["seq_end"] > last["seq_end"] else last
            continue
        if last is not None:
            yield begin, last
        identity = BatchIdentity(row["agent"], row["boot"], row["seq_start"], row["seq_end"])
        begin, last = neighbours_after(identity, row["longest"]), row
    if last is not None:
        yield begin, last


REPORTED = pa.schema([("key", pa.string())])


@dataclass(frozen=True)
class ReportOverlaps:
    """Record overlaps."""

    schema: pa.Schema = REPORTED

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            found = [_overlap(row) for row in batch.to_pylist()]
            await problems.record(store, ambient_of(store), found)
            yield rows_of(REPORTED, ({"key": each.key} for each in found))


def _overlap(row: Document) -> Problem:
    identity = BatchIdentity(row["agent"], row["boot"], row["seq_start"], row["seq_end"])
    others = "another batch" if row["others"] == 1 else f"{row['others']} batches"
    within = f"within {row['low']}-{row['high']}"
    numbers = f"numbers {identity.seq_start}-{identity.seq_end} overlap {others} {within}; each number counts once"
    return Problem(Finding.OVERLAP, ingest.accepted_key(identity), numbers)


# --- what hours list ---

LISTED = pa.schema([("hour", pa.int64()), ("listing", pa.string()), ("manifest_id", pa.string()), *SHARE[:1]])


@dataclass(frozen=True)
class ReadListings:
    """The batches that these hours list, and in which listing. One that cannot be read gives nothing: its batches are
    listed again, and the driver that derives its hour reports it.
    """

    schema: pa.Schema = LISTED

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            for hour in batch.column("hour").to_pylist():
                for ident in listing.ids(await listing.listings(store, hour)):
                    yield rows_of(LISTED, await self._listed(store, hour, ident))

    async def _listed(self, store: Store, hour: int, ident: str) -> list[Document]:
        try:
            rows = await listing.read(store, [derived.batches_key(hour, ident)])
        except Corrupt as error:
            log.error("%s; its batches are listed again", error)
            return []
        return [{"hour": hour, "listing": ident, "manifest_id": r.manifest_id, "records": r.records} for r in rows]


WRITTEN = pa.schema([("hour", pa.int64()), ("key", pa.string())])


@dataclass(frozen=True)
class WriteListings:
    """List batches in their hours and mark the hours as due; rows come by hour.

    A row with a ``listing`` names one that holds a batch of this run already. Its writer may have died before it marked
    the hour: if no generation covers that listing, it is marked again.
    """

    schema: pa.Schema = WRITTEN

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for rows in grouped(given, ("hour",), most=MOST_LISTED):
            hour = rows[0]["hour"]
            fresh = [_listed(row) for row in rows if row["listing"] is None]
            if fresh:
                ident = await listing.write(store, hour, fresh)
                await due.mark(store, ambient_of(store), Kind.ROLLUP, hour, ident)
                yield rows_of(WRITTEN, [{"hour": hour, "key": derived.batches_key(hour, ident)}])
            await self._mark_again(store, hour, {row["listing"] for row in rows} - {None})

    async def _mark_again(self, store: Store, hour: int, holding: set[str]) -> None:
        if not holding:
            return
        try:
            generation = await read_generation(store, Kind.ROLLUP, hour)
        except (Corrupt, Incompatible) as error:
            log.error("%s; its hour is due", error)
            generation = None
        for ident in sorted(holding - set(() if generation is None else generation.listings)):
            await due.mark(store, ambient_of(store), Kind.ROLLUP, hour, ident)


def _listed(row: Document) -> Listed:
    return Listed(**{name: row[name] for name in Listed.__slots__})
