"""Current rows of a type, read from its files: identities with commit and digest, or whole rows.

``TypeState`` is compared with intents by a committer. Large files and the session's own bulk commits are kept as
columns (``batch.Segment``), the rest in a dictionary; the row of the latest commit counts. It is loaded once per type
and session and brought forward by the files of later commits; the session's own commits are applied without reading. A
state is valid for exactly one commit, because a delta that is computed on an older state would be stale.

``read_latest`` reads the live rows of a type at a ledger's commit, ``read_at`` those as of an earlier commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.base.aio import blocking, stream_bounded
from holdfast.base.errors import Corrupt, Invalid, NotFound, check
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of
from holdfast.ontology.chain.resolve import Resolved, with_files
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.batch import Batch, Current, Identity, Row, Segment, changed_rows, digest, merged
from holdfast.ontology.format.data.rows import from_table
from holdfast.ontology.format.data.stored_rows import mark_of, read_current, read_rows
from holdfast.ontology.format.head import read_head
from holdfast.ontology.types.errors import SnapshotGone
from holdfast.ontology.types.refs import FileRef, TypeId

PARALLEL = 16
SEGMENTS = 8
"""If there are more segments than this, they are merged into one."""


@dataclass
class TypeState:
    type_id: TypeId
    generation: int = 0
    commit_id: int = 0
    """The commit that the state is as of, whether or not it touched the type."""
    rows: dict[Identity, Current] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)

    def get(self, identity: Identity) -> Current | None:
        found = self.rows.get(identity)
        for segment in self.segments:
            other = segment.get(identity)
            if other is not None and (found is None or found.commit_id < other.commit_id):
                found = other
        return found

    def changed(self, batch: Batch) -> Batch:
        """The rows of a batch that would change anything. Blocking."""
        return changed_rows(batch, self.segments, self.rows)

    async def bring_forward(
        self, store: Store, files: Iterable[FileRef], commit_id: int, fence: RedactionFence
    ) -> None:
        """Apply the files of the commits after ``self.commit_id``, up to ``commit_id``."""
        check(commit_id >= self.commit_id, f"{self.type_id.label}: the state is as of {self.commit_id} already")
        wanted = [ref for ref in files if ref.type_id == self.type_id]
        oldest = max(self.generation, 1)

        async def read(ref: FileRef) -> Segment | list[tuple[Identity, Current]]:
            return await blocking(read_current, await see_file(store, ref, fence), ref.path, oldest, commit_id)

        async for found in stream_bounded(wanted, read, limit=PARALLEL):
            if isinstance(found, Segment):
                self._add(found)
                continue
            for identity, current in found:
                before = self.rows.get(identity)
                if before is None or before.commit_id <= current.commit_id:
                    self.rows[identity] = current
        self.commit_id = commit_id

    def committed(self, rows: Sequence[Row], commit_id: int) -> None:
        """Apply a commit of this session."""
        if isinstance(rows, Batch):
            self._add(Segment.committed(rows, commit_id))
        else:
            for row in rows:
                self.rows[row.identity] = Current(commit_id, digest(row.fields_json), row.retracted)
        self.commit_id = commit_id

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        if len(self.segments) > SEGMENTS:
            for digested in (False, True):
                alike = [each for each in self.segments if each.digested is digested]
                if len(alike) > 1:
                    self.segments = [each for each in self.segments if each.digested is not digested]
                    self.segments.append(merged(alike))


# --- files ---


async def see_file(store: Store, ref: FileRef, fence: RedactionFence) -> bytes:
    """A data file as it is at the fence's head. ``Overtaken`` if it has lost payload since."""
    body = await read_file(store, ref.path)
    if not fence.concerns(ref.type_id):
        fence.check(mark_of(body, ref.path), ref.path)
        return body
    return await blocking(fence.seen, body, ref.path, ref.type_id)


async def read_file(store: Store, path: str) -> bytes:
    """A data file that the chain or an index names. ``SnapshotGone`` for a snapshot, which only an index names."""
    try:
        return (await store.get(path)).body
    except NotFound as error:
        if path.startswith(layout.SNAPSHOTS):
            raise SnapshotGone(f"{path}: this snapshot is gone", remedy="resolve the type's files again") from error
        raise Corrupt(f"{path}: this data file is missing", remedy="restore it from a backup of the store") from error
    except Invalid as error:
        raise Corrupt(f"a manifest names {path!r} as a data file, and that is not a key") from error


# --- whole rows ---


async def latest_rows(
    store: Store,
    files: Iterable[FileRef],
    *,
    newest: int,
    fence: RedactionFence,
    generation: int = 0,
    seen: Callable[[pa.Table], pa.Table] | None = None,
) -> Mapping[Identity, tuple[int, Row]]:
    """The latest row of every identity in these files, with its commit; retracted ones included.

    ``seen`` may replace the table of each file before its rows are taken.
    """
    found: dict[Identity, tuple[int, Row]] = {}

    async def read(ref: FileRef) -> list[tuple[int, Row]]:
        return await blocking(read_rows, await see_file(store, ref, fence), ref.path, seen)

    async for rows in stream_bounded(files, read, limit=PARALLEL):
        for commit_id, row in rows:
            before = found.get(row.identity)
            if max(generation, 1) <= commit_id <= newest and (before is None or before[0] <= commit_id):
                found[row.identity] = (commit_id, row)
    return found


async def latest_versions(
    store: Store, files: Iterable[FileRef], *, newest: int, fence: RedactionFence, generation: int = 0
) -> list[tuple[Row, int]]:
    """The live rows, by identity, each with the version of the schema that it was written under."""
    versions: dict[tuple[Identity, int], int] = {}

    def note(table: pa.Table) -> pa.Table:
        known = "schema_version_id" in table.column_names
        written = table.column("schema_version_id").to_pylist() if known else [1] * table.num_rows
        commits = table.column("commit_id").to_pylist()
        for row, commit_id, version in zip(from_table(table), commits, written, strict=True):
            versions[row.identity, commit_id] = version if version is not None else 1
        return table

    found = await latest_rows(store, files, newest=newest, fence=fence, generation=generation, seen=note)
    return [
        (row, versions[identity, commit_id])
        for identity, (commit_id, row) in sorted(found.items())
        if not row.retracted
    ]


@dataclass(frozen=True, slots=True)
class Latest:
    """The live rows of a type, each with the commit that wrote it."""

    commit_id: int
    rows: Mapping[Identity, tuple[int, Row]]


async def read_ledger(store: Store, chain: Chain) -> Ledger:
    """The ledger at the current head."""
    return await chain.ledger((await read_head(store)).place)


async def read_latest(
    store: Store,
    chain: Chain,
    ledger: Ledger,
    type_id: TypeId,
    seen: Callable[[pa.Table], pa.Table] | None = None,
    *,
    fence: RedactionFence | None = None,
) -> Latest:
    """``seen`` may replace the table of each file, such as by one with upgraded rows.

    ``fence`` is that of the head, if the ledger is of an earlier commit. ``Overtaken`` if payload was destroyed
    meanwhile.
    """
    known = fence if fence is not None else await fence_of(store, chain, ledger)

    async def read(found: Resolved) -> Mapping[Identity, tuple[int, Row]]:
        return await latest_rows(
            store, found.files(), newest=ledger.commit_id, fence=known, generation=found.generation, seen=seen
        )

    rows = await with_files(store, chain, ledger, type_id, read, known)
    live = {identity: found for identity, found in rows.items() if not found[1].retracted}
    return Latest(ledger.commit_id, live)


async def read_at(store: Store, chain: Chain, now: Ledger, type_id: TypeId, commit_id: int) -> Latest:
    """The live rows as of an earlier commit than the ledger's. Rows that were purged since are left out."""
    if commit_id >= now.commit_id:
        return await read_latest(store, chain, now, type_id)
    if commit_id == 0 or now.purged(type_id, commit_id):
        return Latest(commit_id, {})
    fence = await fence_of(store, chain, now)
    then = await chain.ledger(await chain.at(now.place, commit_id))
    return await read_latest(store, chain, then, type_id, fence=fence)
