"""One attempt at a commit: its data files, manifest and head, composed before anything is sent.

Keys carry eight random characters, so that attempts of different writers do not share keys. The manifest carries 128
random bits more, and every object is created only if absent, in case two writers draw the same characters.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger, next_summary
from holdfast.ontology.format.data.batch import Row
from holdfast.ontology.format.data.footer import stats_of
from holdfast.ontology.format.data.rows import encode
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.manifest import REDACTS, FileEntry, Manifest, Registered, compose
from holdfast.ontology.types.refs import FileRef, Place, Position, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo


class Witness(Protocol):
    """Records every attempt at one commit before its head is sent, so that a later process can look for it.

    ``places`` are the attempts so far, of all processes. ``note`` raises in a process that may not continue.
    """

    @property
    def places(self) -> Sequence[Place]: ...

    async def note(self, place: Place) -> None: ...


class Bulk(Protocol):
    """Rows of one type that are decided elsewhere and do not fit into a committer.

    The decision is valid while the files and the schema of the type are those that it was based on.
    """

    @property
    def type_id(self) -> TypeId: ...

    @property
    def source(self) -> str | None:
        """The source of the batch, if the batch may be handed over more than once."""
        ...

    @property
    def batch(self) -> int: ...

    def stands(self, ledger: Ledger, version_id: int) -> bool: ...

    async def place(self, commit_id: int, attempt: str) -> FileEntry:
        """Write the data file of an attempt. It is called again for another commit."""
        ...


@dataclass(frozen=True)
class Attempt:
    manifest: Manifest
    body: bytes
    """Of the manifest."""
    data: Mapping[str, bytes]
    """Data files by key."""
    rows: Mapping[TypeId, Sequence[Row]]
    intents: int
    """How many of the queued intents it carries, from the first."""
    messages: int = 0
    """How many messages of the outbox."""
    wanted: bool = True
    """Whether a caller waits for it."""

    @property
    def place(self) -> Place:
        return self.manifest.place

    @property
    def keys(self) -> list[str]:
        return [*dict.fromkeys((*self.data, *(entry.path for entry in self.manifest.files))), self.manifest.path]

    def head(self, previous: Head) -> Head:
        made = self.manifest
        return Head(made.commit_id, made.path, made.created_at, made.runtime_id, previous.version, extra=previous.extra)


@dataclass(frozen=True, slots=True)
class Order:
    """What a commit does besides the queued intents."""

    register: bool = False
    """Make the session's types known, and new schemas that can read all that is stored."""
    migrate: frozenset[TypeId] = frozenset()
    """Types whose schema becomes that of their class, whatever it was: their rows are rewritten."""
    drop: Mapping[TypeId, bool] = field(default_factory=dict)
    """Types that end here, and whether they are purged."""
    redact: Document | None = None
    """The payload that the commit orders to be destroyed, recorded in the manifest."""
    write: Mapping[TypeId, Sequence[Row]] = field(default_factory=dict)
    """Rows that are written without a comparison with the current state."""
    bulk: Bulk | None = None

    def __bool__(self) -> bool:
        return self.register or bool(self.migrate or self.drop or self.redact or self.write or self.bulk)

    @property
    def touched(self) -> set[TypeId]:
        return {*self.write, *(() if self.bulk is None else (self.bulk.type_id,))}


PLAIN = Order()


@dataclass(frozen=True)
class Draft:
    """The contents of an attempt."""

    rows: Mapping[TypeId, Sequence[Row]]
    versions: Mapping[TypeId, int]
    """The schema version of each type."""
    registered: Sequence[Registered]
    order: Order
    metadata: Mapping[str, Any]
    runtime_id: str
    intents: int
    outbox: Sequence[Document] = ()
    bulk_file: FileEntry | None = None
    """The data file of a bulk, which was written before, under the key of ``attempt``."""
    attempt: str | None = None


def draw(draft: Draft, ledger: Ledger, types: Mapping[TypeId, TypeInfo], ambient: Ambient) -> Attempt:
    """An attempt at the commit after ``ledger``. Blocking: it encodes Parquet."""
    commit_id, attempt = ledger.commit_id + 1, draft.attempt or ambient.ids.attempt()
    data: dict[str, bytes] = {}
    files: list[FileEntry] = []
    for type_id, rows in sorted(draft.rows.items()):
        version_id = draft.versions[type_id]
        body = encode(types[type_id], rows, commit_id, version_id)
        key = layout.data_key(commit_id, attempt, *type_id)
        data[key] = body
        stats = stats_of(body, key=key)
        files.append(FileEntry(*type_id, key, len(rows), version_id, hashlib.sha256(body).hexdigest(), stats))
    if draft.bulk_file is not None:
        files = sorted([*files, draft.bulk_file], key=lambda entry: entry.type_id)
    bulk = draft.order.bulk
    sinks = {} if bulk is None or bulk.source is None else {bulk.source: Position(bulk.batch, commit_id)}
    # Times never run backwards along the chain, whatever the clocks of its writers say.
    created_ns = max(ambient.clock.wall_ns(), ledger.created_ns + 1_000)
    place, redact = Place(commit_id, layout.manifest_key(commit_id, attempt)), draft.order.redact
    manifest = Manifest(
        commit_id=commit_id,
        path=place.path,
        parent=ledger.place,
        created_at=iso(created_ns),
        runtime_id=draft.runtime_id,
        metadata=draft.metadata,
        files=tuple(files),
        registered=tuple(draft.registered),
        summary=next_summary(
            ledger,
            [FileRef(commit_id, entry.type_id, entry.path) for entry in files],
            ambient.ids.unique(),
            draft.registered,
            draft.order.drop,
            {entry.path: entry.stats for entry in files if entry.stats is not None},
            place if redact is not None else None,
            sinks,
        ),
        outbox=tuple(draft.outbox),
        extra={} if redact is None else {REDACTS: redact},
    )
    return Attempt(manifest, compose(manifest), data, draft.rows, draft.intents, len(draft.outbox))
