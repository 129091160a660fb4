"""Kernels of an audit: which objects manifests require (``Claims``), and the checks of objects and days (``Judge``).

The SQL of the job finds what may be wrong; a check here reads the objects themselves and decides. So a suspicion costs
requests, and never a wrong finding: a writer may have been at work between two listings.

Errors: whatever is wrong with one object is a finding about it; only a store that does not answer fails a task.
"""

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded, stream_bounded
from holdfast.base.audit import WEIGHT, Finding, Look, Tally
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, NotFound, check
from holdfast.base.ids import Ambient
from holdfast.bus import layout as bus
from holdfast.bus.audit import NamespaceCheck
from holdfast.objects.store import OVERWRITE, Entry, Store
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.pipeline.jobs.audited import list_key
from holdfast.pipeline.units import Made, Planned, derive
from holdfast.runs import layout as runs
from holdfast.runs.admin.audit import Folder, RunCheck
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.audit import REFERENCES, BatchCheck
from holdfast.telemetry.accept.conflicts import Resolutions
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import shares
from holdfast.telemetry.frame import Batch, Limits
from holdfast.telemetry.rollup import chunk, index, listing
from holdfast.telemetry.rollup import layout as rollup
from holdfast.telemetry.rollup.audit import RULES as DERIVED
from holdfast.telemetry.rollup.audit import Hour, HourCheck
from holdfast.telemetry.rollup.kernel import Chunk, version_of
from holdfast.telemetry.rollup.layout import Windows, hour_name
from holdfast.telemetry.rollup.manifest import ChunkRef, Kind, Table, UnitManifest, read_generation

READS = 16
GROUPS_AT_ONCE = 64
LINES_AT_ONCE = 20_000
HOURS_KEPT = 16
SHORT = 12
"""Bytes of a manifest id that are compared."""


@dataclass(frozen=True)
class Order:
    """What every task of an audit needs to know."""

    audit_id: str
    through_ns: int
    one_in: int
    reconciled_ns: int
    windows: tuple[str, ...]
    limits: tuple[int, ...]

    def document(self) -> Document:
        return {**vars(self), "windows": list(self.windows), "limits": list(self.limits)}

    @classmethod
    def of(cls, document: Document) -> "Order":
        plain: Document = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
        return cls(**plain)

    @property
    def look(self) -> Look:
        return Look(self.through_ns, self.one_in, self.audit_id)


# --- what manifests name ---

CLAIMS = pa.schema(
    [
        ("source", pa.string()),  # a manifest, a conflict or a resolution
        ("target", pa.string()),  # the object that must be there; NULL: the source has to be checked in any case
        ("bytes", pa.int64()),  # its length, where the source implies one
        ("unless", pa.string()),  # the object that excuses its absence: the record of an expiry
    ]
)


@dataclass(frozen=True)
class Claims:
    """Read manifests, and give what each of them says must be there. One GET for each accepted manifest."""

    order: Order
    schema: pa.Schema = CLAIMS

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            found: list[Document] = []
            async for claims in stream_bounded(
                batch.column("key").to_pylist(), lambda key: self._claims(store, key), limit=READS
            ):
                found += claims
            yield pa.RecordBatch.from_pylist(found, CLAIMS)

    async def _claims(self, store: Store, key: str) -> list[Document]:
        if key.startswith(layout.RESOLUTIONS):
            return [_claim(key, f"{layout.CONFLICTS}{key.removeprefix(layout.RESOLUTIONS)}")]
        if key.startswith(layout.CONFLICTS):
            return _of_conflict(key)
        identity = layout.identity_in(key)
        if identity is None or key != layout.accepted_key(identity):
            return [_claim(key)]
        found = await store.find(key)
        if found is None:
            return []  # removed since it was listed
        try:
            manifest = AcceptedManifest.read(found)
        except (Corrupt, Incompatible):
            return [_claim(key)]
        return list(self._of_manifest(manifest))

    def _of_manifest(self, manifest: AcceptedManifest) -> Iterable[Document]:
        key, blob = manifest.key, manifest.raw_blob_key
        if self.order.look.closely(blob) or layout.blob_hash(blob) != manifest.frame_sha256:
            yield _claim(key)
        expired = layout.expired_key(manifest.identity)
        yield _claim(key, blob, manifest.frame_bytes, expired)
        by_time, *of_bytes = references.of_accepted(manifest)
        yield _claim(key, by_time.key)  # attempts write references of different lengths
        for reference in of_bytes:  # these go with the bytes
            yield _claim(key, reference.key, len(reference.body), expired)


def _claim(source: str, target: str | None = None, size: int | None = None, unless: str | None = None) -> Document:
    return {"source": source, "target": target, "bytes": size, "unless": unless}


def _of_conflict(key: str) -> list[Document]:
    """Conflicts are few: each is checked. Its targets follow from its name."""
    identity, sha256 = layout.identity_in(key), key.rpartition("/")[2].removesuffix(".json")
    if identity is None or len(sha256) != 64:
        return [_claim(key)]
    targets = layout.blob_key(sha256), layout.conflict_by_blob_key(sha256, identity)
    return [_claim(key), *(_claim(key, target) for target in targets)]


# --- checks ---

FINDINGS = pa.schema(
    [
        ("rule", pa.string()),
        ("severity", pa.string()),
        ("weight", pa.int64()),  # the gravest is 0
        ("key", pa.string()),
        ("message", pa.string()),
        ("remedy", pa.string()),
        ("checked", pa.string()),  # instead of a rule: what was counted
        ("n", pa.int64()),
    ]
)
COUNTED_BY_SQL = frozenset(("accepted", "references", "expired"))
"""For accepted batches the checks see only suspects, so the SQL counts all of them."""

Group = tuple[str, str, list[Entry]]
"""The space, the part to check in it, and its objects."""


@dataclass(frozen=True)
class Judge:
    """Check what the SQL has chosen: rows of (space, part, key, size, modified_ns), the rows of a part together."""

    order: Order
    schema: pa.Schema = FINDINGS

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        checks = Checks(store, self.order)
        groups: list[Group] = []
        async for group in _grouped(given):
            groups.append(group)
            if len(groups) >= GROUPS_AT_ONCE:
                yield await checks.judge(groups)
                groups = []
        yield await checks.judge(groups)


async def _grouped(given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[Group]:
    group: Group | None = None
    async for batch in given:
        for row in batch.to_pylist():
            if group is None or group[:2] != (row["space"], row["part"]):
                if group is not None:
                    yield group
                group = row["space"], row["part"], []
            group[2].append(Entry(row["key"], row["size"], row["modified_ns"]))
    if group is not None:
        yield group


class Checks:
    """The check of each space. One for each task: what namespaces and hours say is read once."""

    def __init__(self, store: Store, order: Order) -> None:
        self.store, self.look = store, order.look
        self.limits, self.windows = Limits(*order.limits), Windows.of(order.windows)
        self.tally = Tally()
        resolutions = Resolutions(store, Ambient.system())  # it only reads
        self._batches = BatchCheck(store, self.look, self.limits, resolutions, order.reconciled_ns)
        self._hours = Hours(store)
        self._namespaces: dict[str, NamespaceCheck] = {}

    async def judge(self, groups: list[Group]) -> pa.RecordBatch:
        self.tally = Tally()
        await map_bounded(groups, self._check, limit=READS)
        rows = [_row(each) for each in self.tally.findings]
        rows += [{"checked": name, "n": count} for name, count in self.tally.checked.items() if count]
        return pa.RecordBatch.from_pylist(rows, FINDINGS)

    async def sure(self, look: Callable[[Tally], Awaitable[object]]) -> None:
        """Run a check twice, and keep the findings that both runs report: a writer may have been active during the
        first."""
        tally = Tally()
        await look(tally)
        if tally.findings:
            again = Tally()
            await look(again)
            again.keep(tally.findings)
            tally = again
        self.tally.take(tally)

    async def _check(self, group: Group) -> None:
        space, part, entries = group
        match space:
            case "accepted":
                await self.sure(lambda tally: self._accepted(entries[0], tally))
            case "run":
                await self._run(Folder.of(part, entries))
            case "run index":
                await self.sure(lambda tally: RunCheck(self.store, self.look).indexed(entries[0], tally))
            case "event":
                await self._event(entries[0])
            case "day":
                await check_day(self, part)
            case "namespace":
                found = await NamespaceCheck.of(self.store, self.look, part)
                await self.sure(found.knowledge)
            case "ontology":
                await self.sure(self._ontology)
            case _:
                check(False, f"an audit has no check of {space!r}")

    # --- accepted batches, and what hangs on them ---

    async def _accepted(self, entry: Entry, tally: Tally) -> None:
        own = Tally()
        await self._in_ingest(entry, own)
        for name in COUNTED_BY_SQL:
            own.checked.pop(name, None)
        tally.take(own)

    async def _in_ingest(self, entry: Entry, tally: Tally) -> None:
        key = entry.key
        if key.startswith(tuple(REFERENCES)):
            await self._batches.reference(entry, tally)
        elif key.startswith(layout.ACCEPTED):
            seen = await self._batches.accepted(entry, tally)
            if seen.manifest is not None and seen.batch is not None and seen.reconciled:
                await check_listed(self._hours, seen.manifest, seen.batch, tally)
        elif key.startswith(layout.CONFLICTS):
            await self._batches.conflict(entry, tally)
            blob = layout.blob_key(key.rpartition("/")[2].removesuffix(".json")) if not tally.findings else ""
            if blob and self.look.closely(blob):
                await self._batches.evidence(Entry(blob, 0, 0), tally)
        elif key.startswith(layout.RESOLUTIONS):
            await self._batches.resolution(entry, tally)
        elif layout.blob_hash(key) is not None:
            await self._batches.loose(entry, tally)
        else:
            await self._batches.foreign(entry, tally)

    # --- runs, events, ontology ---

    async def _run(self, folder: Folder) -> None:
        listed: Folder | None = folder

        async def run(tally: Tally) -> None:
            nonlocal listed
            if listed is None:  # the second check is of what is there now
                prefix = runs.run_folder(folder.run_id)
                entries = [entry async for page in self.store.list(prefix) for entry in page.entries]
                listed = Folder.of(folder.run_id, entries)
            current, listed = listed, None
            await RunCheck(self.store, self.look).run(current, tally)

        await self.sure(run)

    async def _event(self, entry: Entry) -> None:
        namespace = entry.key.split("/")[1]
        if namespace not in self._namespaces:
            self._namespaces[namespace] = await NamespaceCheck.of(self.store, self.look, namespace)
        found = self._namespaces[namespace]
        checks = {bus.EVENTS: found.event, bus.CLAIMS: found.claim, bus.DEAD_LETTERS: found.letter}
        (one,) = [each for prefix, each in checks.items() if entry.key.startswith(prefix)]
        await self.sure(lambda tally: one(entry, tally))

    async def _ontology(self, tally: Tally) -> None:
        """The whole ontology at once, because every check needs its one chain."""
        report = await verify(self.store, deep=self.look.deep)
        tally.checked.update({f"ontology {name}": count for name, count in report.checked.items()})
        tally.findings += [_of_ontology(each) for each in report.findings]


def _of_ontology(found: Finding) -> Finding:
    return replace(found, rule=replace(found.rule, name=f"ontology_{found.rule.name}"))


def _row(found: Finding) -> dict[str, Any]:
    return {**found.document(), "weight": WEIGHT[found.severity]}


# --- derived data, a day at a time ---


async def days(store: Store) -> list[str]:
    """Days with derived data or listings, as written in keys."""
    found: set[str] = set()
    for prefix in (rollup.BATCHES_BY_HOUR, rollup.MANIFESTS):
        async for page in store.list(prefix, delimiter=True):
            found |= {folder.removeprefix(prefix) for folder in page.folders}
    return sorted(found)


async def check_day(checks: Checks, day: str) -> None:
    sizes = set(checks.windows.all) | {size async for size in _windows(checks.store)}
    check = HourCheck(checks.store, checks.look, sizes)
    for hour in [hour async for hour in _hours(checks.store, day)]:

        async def one(tally: Tally, hour: int = hour) -> None:
            found = await check.check(hour, tally)
            if checks.look.deep:
                for manifest in found.units:
                    await _again(checks, found, manifest, tally)

        await checks.sure(one)


async def _hours(store: Store, day: str) -> AsyncIterator[int]:
    found: set[int] = set()
    for prefix in (rollup.BATCHES_BY_HOUR, rollup.MANIFESTS):
        async for page in store.list(f"{prefix}{day}", delimiter=True):
            found |= {hour for hour in map(rollup.hour_in, page.folders) if hour is not None}
    for hour in sorted(found):
        yield hour


async def _windows(store: Store) -> AsyncIterator[int]:
    """Windows that rollups exist in: those that are set now, and earlier ones."""
    async for page in store.list(rollup.ROLLUP, delimiter=True):
        for folder in page.folders:
            try:
                yield rollup.window_of(folder.removeprefix(f"{rollup.ROLLUP}window=").rstrip("/"))
            except HoldfastError:
                continue  # a foreign folder


# --- a deep audit: derived again ---


async def _again(checks: Checks, found: Hour, manifest: UnitManifest, tally: Tally) -> None:
    """The same batches give the same rows; only the Parquet encoding may differ."""
    unit = manifest.unit
    rows = [found.rows.get(each.id) for each in unit.inputs]
    if unit.kind is Kind.DAILY or unit.closed or unit.version != version_of(unit.kind, checks.windows) or None in rows:
        tally.checked["units not derived again"] += 1
        return
    planned = Planned(unit, [row for row in rows if row is not None])
    found_again, unreadable = await derive(checks.store, planned, checks.windows, checks.limits, Made(manifest))
    tally.checked["units derived again"] += 1
    if tuple(sorted(unreadable)) != manifest.unreadable:
        return  # the batches are not what they were, which is a finding of their own
    if (found_again.records, found_again.repeated) != (manifest.records, manifest.repeated):
        detail = f"its batches have {found_again.records} records, and it counted {manifest.records}"
        tally.find(DERIVED["wrong_count"], manifest.key, detail)
    made = {each.ref.key: each for each in found_again.chunks()}
    for ref in manifest.chunks:
        detail = await _differs(checks.store, ref, made.pop(ref.key, None))
        if detail:
            tally.find(DERIVED["wrong_rows"], ref.key, detail)
    for key in made:
        tally.find(DERIVED["wrong_rows"], key, f"{manifest.key} ought to name it")


async def _differs(store: Store, ref: ChunkRef, made: Chunk | None) -> str:
    if made is None:
        return "deriving its batches gives no such chunk"
    if ref.crc32 == made.ref.crc32 and ref.size == made.ref.size:
        return ""
    try:
        there = (await store.get(ref.key)).body
        same = await blocking(_table, ref, there) == await blocking(_table, ref, made.body)
    except (NotFound, Corrupt, Incompatible):
        return ""  # a finding of the chunk itself
    return "" if same else "its rows are not those that its batches give"


def _table(ref: ChunkRef, body: bytes) -> Any:
    if ref.table is Table.ROLLUP:
        return chunk.table_of(chunk.decode(body, key=ref.key))
    return index.decode(ref.table, body, key=ref.key)


# --- batches against listings ---


class Hours:
    """Which batches are known to matter to an hour; the latest few hours are kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[int, frozenset[bytes]] = OrderedDict()

    async def knows(self, hour: int, manifest_id: str) -> bool:
        """What the current generation counts is known from its units, one GET for each; else all listings are read."""
        short = bytes.fromhex(manifest_id)[:SHORT]
        for read in (self._kept_of, self._counted, self._listed):
            known = await read(hour)
            if known is not None and short in known:
                self._kept[hour] = known
                self._kept.move_to_end(hour)
                while len(self._kept) > HOURS_KEPT:
                    self._kept.popitem(last=False)
                return True
        return False

    async def _kept_of(self, hour: int) -> frozenset[bytes] | None:
        return self._kept.get(hour)

    async def _counted(self, hour: int) -> frozenset[bytes] | None:
        found: set[str] = set()
        try:
            generation = await read_generation(self._store, Kind.ROLLUP, hour)
            for unit in generation.units if generation is not None else ():
                manifest = UnitManifest.read(await self._store.get(rollup.unit_key(hour, unit.unit_id)))
                found |= {each.id for each in manifest.unit.inputs}
        except (NotFound, Corrupt, Incompatible):
            return None  # a finding of the hour
        return _short(found)

    async def _listed(self, hour: int) -> frozenset[bytes] | None:
        found: set[str] = set()
        for ident in listing.ids(await listing.listings(self._store, hour)):
            try:
                found |= {row.manifest_id for row in await listing.read(self._store, [rollup.batches_key(hour, ident)])}
            except (NotFound, Corrupt):
                continue  # a finding of the hour
        return _short(found)


def _short(manifest_ids: Iterable[str]) -> frozenset[bytes]:
    return frozenset(bytes.fromhex(each)[:SHORT] for each in manifest_ids)


async def check_listed(hours: Hours, manifest: AcceptedManifest, batch: Batch, tally: Tally) -> None:
    """Check that every hour in which a reconciled batch has records lists it."""
    own, _ = shares(batch, manifest.limits)
    for share in own:
        tally.checked["batches in hours"] += 1
        if not await hours.knows(share.hour, manifest.identity.manifest_id):
            detail = f"it has {share.records} records in {hour_name(share.hour)}, which does not list it"
            tally.find(DERIVED["unlisted_batch"], manifest.key, detail)


# --- lists of findings ---


@dataclass(frozen=True)
class WriteLists:
    """Write findings as lines of JSON into objects beside the record. A task that runs twice writes the same."""

    audit_id: str
    schema: pa.Schema = field(default_factory=lambda: pa.schema([("key", pa.string())]))

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        lines: list[bytes] = []
        async for batch in given:
            lines += [codec.encode(row) for row in batch.to_pylist()]
            if len(lines) >= LINES_AT_ONCE:
                yield await self._write(store, lines)
                lines = []
        if lines:
            yield await self._write(store, lines)

    async def _write(self, store: Store, lines: list[bytes]) -> pa.RecordBatch:
        body = b"\n".join(lines) + b"\n"
        key = list_key(self.audit_id, hashlib.sha256(body).hexdigest()[:32])
        await store.put(key, body, OVERWRITE)
        return pa.RecordBatch.from_pylist([{"key": key}], self.schema)
