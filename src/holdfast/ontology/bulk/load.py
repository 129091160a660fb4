"""Bulk loads and imports: many checked rows of one type become one commit, with one data file.

    staged files (by tasks)  --decide, by ranges of keys-->  parts  --encode-->  data file, manifest, head

Tasks stage rows independently of each other and of the store's state. What is written is decided against the current
rows, range by range, which gives the parts. The number of the commit is a column of the data file and part of its key,
so the file is encoded when the number is known, into a temporary file, a row group at a time. After a lost race for the
head it is encoded again, and decided again only if the same type was committed to.

**Once.** A load may name its ``source`` and its ``batch``, a number that rises. Manifests carry the last batch of each
source, so the compare-and-swap that makes the commit also records the batch: a load of a batch that is not newer
returns the commit that has it and writes nothing. Of two drivers with the same batch one loses the head, and then finds
the batch on the chain.

Imports and small loads on small types are decided in this process, the others wherever ``run`` executes tasks.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking, stream_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Store
from holdfast.ontology.bulk import stage
from holdfast.ontology.bulk.decide import Rules, Tally, identities
from holdfast.ontology.bulk.stage import SIZES, KeyRange, Sizes, StagedFile, StateColumns, key_ranges
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.resolve import resolve
from holdfast.ontology.commit.attempt import Bulk
from holdfast.ontology.commit.commit import Commit, commit_of
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.columns import forms_metadata
from holdfast.ontology.format.data.footer import of_footer, stats_of
from holdfast.ontology.format.data.remote_parquet import remote_parquet
from holdfast.ontology.format.data.rows import ROW_GROUP, writer_for
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.manifest import FileEntry
from holdfast.ontology.format.stats import ROWS_MAX
from holdfast.ontology.types.errors import BulkOutdated, Overtaken, SnapshotGone
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import Place, Position, TypeHead, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema


@dataclass
class Prepared:
    """Rows that were decided on a type's head, ready for a commit."""

    store: Store
    target: TypeInfo
    head: TypeHead
    generation: int
    redacted: Place | None
    """The latest redaction when they were decided."""
    parts: Sequence[pa.Table | StagedFile]
    """The rows in the order of identities, in memory or staged, without the columns that have one value in all rows."""
    partial: Sequence[str]
    source: str | None
    batch: int
    group_rows: int = ROW_GROUP
    attempts: list[str] = field(default_factory=list)
    """The attempts that a file was written for."""

    @property
    def type_id(self) -> TypeId:
        return self.target.type_id

    def stands(self, ledger: Ledger, version_id: int) -> bool:
        same = (ledger.head_of(self.type_id), version_id) == (self.head, self.target.version_id)
        same = same and ledger.redacted == self.redacted
        return same and (ledger.generation_of(self.type_id) == self.generation or not self.head.files)

    async def place(self, commit_id: int, attempt: str) -> FileEntry:
        key = layout.data_key(commit_id, attempt, *self.type_id)
        self.attempts.append(attempt)
        with TemporaryFile(prefix=".holdfast-") as file:
            footer = await self._encode(file, commit_id)
            digest = await blocking(_rewound_digest, file)
            size, rows = file.tell(), footer.num_rows
            await self.store.put_stream(key, partial(_pieces, file))
            if rows <= ROWS_MAX:
                file.seek(0)
                stats = await blocking(stats_of, file.read(), key=key)
            else:
                stats = of_footer(footer, size, unique=True)
        return FileEntry(*self.type_id, key, rows, self.target.version_id or 1, digest, stats)

    async def _encode(self, file: IO[bytes], commit_id: int) -> Any:
        """Write the rows to a local file. Returns the metadata of its footer."""
        writer: pq.ParquetWriter | None = None
        footers: list[Any] = []
        async for table in self._groups():
            group = await blocking(self._file_rows, table, commit_id)
            if writer is None:
                writer = writer_for(file, group, metadata_collector=footers)
            await blocking(writer.write_table, group, row_group_size=self.group_rows)
        if writer is None:
            raise ValueError("a bulk load without rows has no data file")
        writer.add_key_value_metadata(forms_metadata(self.target.columns, self.partial))
        await blocking(writer.close)
        return footers[0]

    async def _groups(self) -> AsyncIterator[pa.Table]:
        """The rows of all parts, one row group at a time."""
        waiting, count = list[pa.Table](), 0
        async for table in self._tables():
            waiting, count = [*waiting, table], count + table.num_rows
            while count >= self.group_rows:
                joined = pa.concat_tables(waiting)
                yield joined.slice(0, self.group_rows)
                waiting, count = [joined.slice(self.group_rows)], count - self.group_rows
        if count:
            yield pa.concat_tables(waiting)

    async def _tables(self) -> AsyncIterator[pa.Table]:
        for part in self.parts:
            if isinstance(part, pa.Table):
                yield part
                continue
            try:
                async with remote_parquet(self.store, part.key, part.size) as file:
                    async for table in file.tables(range(len(file.chunks))):
                        yield table
            except NotFound as error:
                raise staged_file_gone(part.key) from error

    def _file_rows(self, rows: pa.Table, commit_id: int) -> pa.Table:
        """The rows with the columns that have one value in all of them, in the order that commits have."""
        kind = self.type_id.kind
        columns: dict[str, Any] = {
            "commit_id": pa.repeat(pa.scalar(commit_id, pa.int64()), rows.num_rows),
            f"{kind}_type": pa.repeat(pa.scalar(self.type_id.name, pa.string()), rows.num_rows),
            **{name: rows.column(name) for name in key_columns(kind)},
            "schema_version_id": pa.repeat(pa.scalar(self.target.version_id, pa.int64()), rows.num_rows),
        }
        return pa.table({**columns, **{name: rows.column(name) for name in rows.column_names if name not in columns}})


def _rewound_digest(file: IO[bytes]) -> str:
    """The digest of all bytes of a file, which is read to its end. Blocking."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it is one


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    await blocking(file.seek, 0)
    while piece := await blocking(file.read, PIECE_BYTES):
        yield piece


def staged_file_gone(key: str) -> Conflict:
    return Conflict(f"{key}: a staged file of the load was removed, because the load seemed dead", remedy="load again")


TRIES = 8
PARALLEL = 16
PIECE_BYTES = 1 << 20
TASK = "a task of a bulk load"
DOUBTS = RetryPolicy(attempts=8, base_ms=50, max_ms=5_000, deadline_ms=120_000)
"""How often a commit whose outcome is unknown is asked for again."""

Task = Callable[[Store, Ambient, Document], Awaitable[list[Document]]]
Run = Callable[[str, Task, Sequence[Document]], Awaitable[list[Document]]]
"""Runs a task for each payload, and returns their rows."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of a load."""

    tally: Tally
    commit: Commit | None
    """None if it changes nothing."""
    replayed: bool = False
    """Its batch was committed before, by this or another driver: nothing was written."""


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters of a load."""

    load: str = ""
    """The unique name under which files are staged; empty if none are."""
    rules: Rules = field(default_factory=Rules)
    source: str | None = None
    batch: int = 0
    if_head: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """All rows of a load in memory, validated by their class."""

    table: pa.Table
    partial: frozenset[str]
    """Typed columns that lack values which ``fields_json`` has."""


Given = Sequence[StagedFile] | CheckedRows
Decision = tuple[Sequence[pa.Table | StagedFile], set[str], Tally]
"""The parts to be written, typed columns of them that lack values, and the counts."""


# --- the load ---


class Session(Protocol):
    """The methods of an ontology's session that a load uses."""

    @property
    def store(self) -> Store: ...

    @property
    def chain(self) -> Chain: ...

    async def agreed(self, of: type[Mixin]) -> tuple[Ledger, int]: ...

    async def land(self, bulk: Bulk, metadata: Mapping[str, Any], if_head: int | None = None) -> Commit | None: ...


class Loader:
    """Decides and commits rows of one type. ``run`` is needed for staged files only."""

    def __init__(
        self, onto: Session, ambient: Ambient, info: TypeInfo, run: Run | None = None, sizes: Sizes = SIZES
    ) -> None:
        self._sizes = sizes
        self._onto = onto
        self._store = onto.store
        self._ambient = ambient
        self._info = info
        self._run = run

    async def land(self, request: Request, given: Given) -> Landed:
        """One commit, or none. ``Conflict`` if the rules refuse it, or if others keep committing to the type."""
        for _ in range(TRIES):
            ledger, version_id = await self._onto.agreed(self._info.python)
            if (position := self._position(request, ledger)) is not None:
                return await self._committed_before(position, ledger)
            try:
                prepared, tally = await self._prepared(request, given, ledger, version_id)
                tally.check(self._info.type_id, request.rules)
                if prepared is None:
                    _check_head(request, ledger)
                    return Landed(tally, None)
                return await self._land(request, prepared, tally)
            except (BulkOutdated, Overtaken, SnapshotGone):
                continue
            except NotFound as error:
                raise staged_file_gone(str(error)) from error
        raise Conflict(
            f"{self._info.type_id.label}: others keep committing to it", remedy="load when there is less going on"
        )

    async def _land(self, request: Request, prepared: Prepared, tally: Tally) -> Landed:
        budget = DOUBTS.start(self._ambient)
        while True:
            try:
                commit = await self._onto.land(prepared, request.metadata, request.if_head)
            except Ambiguous:
                # The next try looks for the commit first. When the tries are used up, the caller has to.
                if not await budget.another():
                    raise
                continue
            ours = commit is not None and any(f"-{each}/" in commit.manifest_path for each in prepared.attempts)
            return Landed(tally, commit, replayed=not ours)

    def _position(self, request: Request, ledger: Ledger) -> Position | None:
        """The position of the source, if the batch is committed."""
        found = None if request.source is None else ledger.sinks.get(request.source)
        return found if found is not None and found.batch >= request.batch else None

    async def _committed_before(self, position: Position, ledger: Ledger) -> Landed:
        place = await self._onto.chain.at(ledger.place, position.commit_id)
        if place is None:
            raise Corrupt(f"commit {position.commit_id} should have a batch, and is not on the chain")
        return Landed(Tally(), commit_of(await self._onto.chain.manifest(place)), replayed=True)

    # --- deciding ---

    async def _prepared(
        self, request: Request, given: Given, ledger: Ledger, version_id: int
    ) -> tuple[Prepared | None, Tally]:
        type_id = self._info.type_id
        target = of_schema(type_id, self._info.schema, version_id=version_id)
        found = await resolve(self._store, self._onto.chain, ledger, type_id)
        state = StateColumns.of(self._info, max(found.generation, 1), ledger.commit_id, request.rules)
        if isinstance(given, CheckedRows):
            parts, partial, tally = await self._here(request.rules, target, given, state, found.entries)
        elif _small(request.rules, given, found.entries, self._sizes):
            rows = await stage.read_range(self._store, given, KeyRange(), type_id.kind)
            lacking = frozenset(name for staged_file in given for name in staged_file.partial)
            checked = None if rows is None else CheckedRows(rows, lacking)
            parts, partial, tally = await self._here(request.rules, target, checked, state, found.entries)
        else:
            parts, partial, tally = await self._elsewhere(request, target, given, state, found.entries)
        if not parts:
            return None, tally
        prepared = Prepared(
            self._store,
            target,
            ledger.head_of(type_id),
            found.generation,
            ledger.redacted,
            parts,
            sorted(partial),
            request.source,
            request.batch,
        )
        return prepared, tally

    async def _here(
        self, rules: Rules, target: TypeInfo, given: CheckedRows | None, state: StateColumns, entries: Sequence[Entry]
    ) -> Decision:
        """Decide in this process. Of the current rows only those that the load is about are kept."""
        keys, among = key_columns(target.type_id.kind), None
        if given is not None and not rules.instead:
            among = identities(given.table, keys)

        async def read(entry: Entry) -> list[pa.Table]:
            return [table async for table in stage.state_tables(self._store, state, entry.path, _size(entry), among)]

        tables = [table async for found in stream_bounded(entries, read, limit=PARALLEL) for table in found]
        rows, partial = (None, set[str]()) if given is None else (given.table, set(given.partial))
        current = stage.concatenated(tables)
        made, tally = await blocking(stage.decided_rows, target, rows, current, rules, partial)
        return [] if made is None else [made], partial, tally

    async def _elsewhere(
        self,
        request: Request,
        target: TypeInfo,
        staged_files: Sequence[StagedFile],
        state: StateColumns,
        entries: Sequence[Entry],
    ) -> Decision:
        """Decide in tasks: one for each group of current files, then one for each range of keys."""
        if self._run is None:
            raise ValueError("staged files of this size need tasks, and there is no way to run them")
        groups = [
            {"load": request.load, "state": state.document(), "files": [[each.path, _size(each)] for each in group]}
            for group in _grouped(entries, self._sizes.files_bytes)
        ]
        listed = await self._run("state", state_task, groups)
        if any("gone" in each for each in listed):
            raise SnapshotGone(f"{listed[0]}")
        states = [StagedFile.parse(each, key=TASK) for each in listed]
        begun = [*staged_files, *states] if request.rules.instead else staged_files
        payloads = [
            {
                "number": number,
                "load": request.load,
                "type": list(target.type_id),
                "version": target.version_id,
                "schema": self._info.schema,
                "range": wanted.document(),
                "rows": _within(staged_files, wanted),
                "state": _within(states, wanted),
                "rules": request.rules.document(),
            }
            for number, wanted in enumerate(key_ranges(begun, self._sizes.range_rows))
        ]
        done = await self._run("decide", range_task, payloads)
        tally, partial = Tally(), set[str]()
        for each in done:
            tally.add(each["tally"])
            partial |= set(each["partial"])
        ordered = sorted((each for each in done if each["rows"] is not None), key=lambda each: each["number"])
        return [StagedFile.parse(each["rows"], key=TASK) for each in ordered], partial, tally


def _check_head(request: Request, ledger: Ledger) -> None:
    if request.if_head not in (None, ledger.commit_id):
        raise Conflict(
            f"head is commit {ledger.commit_id}, and commit {request.if_head} was expected",
            remedy="read what has changed, decide again, and load with the new head",
        )


def _small(rules: Rules, staged_files: Sequence[StagedFile], entries: Sequence[Entry], sizes: Sizes) -> bool:
    if any(entry.stats is None for entry in entries):
        return False
    stats = [entry.stats for entry in entries if entry.stats is not None]
    rows = sum(staged_file.rows for staged_file in staged_files)
    rows += sum(each.rows for each in stats) if rules.instead else 0
    count = sum(staged_file.size for staged_file in staged_files) + sum(each.size for each in stats)
    return rows <= sizes.small_rows and count <= sizes.small_bytes


def _size(entry: Entry) -> int | None:
    return None if entry.stats is None else entry.stats.size


def _grouped(entries: Sequence[Entry], limit: int) -> list[list[Entry]]:
    groups: list[list[Entry]] = []
    filled = limit
    for entry in entries:
        if filled >= limit:
            groups.append([])
            filled = 0
        groups[-1].append(entry)
        filled += _size(entry) or limit
    return groups


def _within(staged_files: Sequence[StagedFile], wanted: KeyRange) -> list[Document]:
    return [some.document() for staged_file in staged_files if (some := staged_file.within(wanted)) is not None]


# --- tasks ---


async def state_task(store: Store, ambient: Ambient, payload: Document) -> list[Document]:
    """Stage the current rows of some files."""
    wanted = StateColumns.parse(payload["state"], key=TASK)
    files = [(path, size) for path, size in payload["files"]]
    try:
        return [each.document() for each in await stage.stage_state(store, ambient, payload["load"], wanted, files)]
    except SnapshotGone as error:
        return [{"gone": str(error)}]


async def range_task(store: Store, ambient: Ambient, payload: Document) -> list[Document]:
    """Decide about a range of keys, and stage the rows to be written."""
    kind, name = payload["type"]
    target = of_schema(TypeId(kind, name), payload["schema"], version_id=payload["version"])
    wanted, rules = KeyRange.parse(payload["range"], key=TASK), Rules.parse(payload["rules"], key=TASK)
    staged_files, states = ([StagedFile.parse(each, key=TASK) for each in payload[what]] for what in ("rows", "state"))
    rows = await stage.read_range(store, staged_files, wanted, kind)
    state = await stage.read_range(store, states, wanted, kind)
    partial = {name for staged_file in staged_files for name in staged_file.partial}
    made, tally = await blocking(stage.decided_rows, target, rows, state, rules, partial)
    part = None
    if made is not None:
        part = await stage.write_staged(store, ambient, payload["load"], target.type_id, "part", [made])
    return [
        {
            "number": payload["number"],
            "rows": None if part is None else part.document(),
            "partial": sorted(partial) if made is not None else [],
            "tally": tally.document(),
        }
    ]
