"""Manifests as documents: parse, compose, invariants. Pure.

A manifest has the fields of the specification. Ours have more (``Summary``), so that readers need not walk a long
chain:

* ``attempt_id``   128 bits: distinguishes two writers that drew the same eight characters for their key;
* ``skips``        ``[[commit_id, path], ...]``: for every power of two the latest earlier commit that it divides, so
  that any ancestor is reached in O(log n) reads;
* ``base``         the latest earlier manifest that is ``full``, or null;
* ``recent``       ``[[commit_id, kind, type, path], ...]``: the files of all commits after ``base``, this one included;
* ``recent_stats`` rows, bytes and key range of each of them, or null; ``files`` have the same and more, as ``stats``;
* ``type_heads``   per type ``[last commit, files, digest]``; the digest folds the list of all files of the type, so a
  list from an index or a checkpoint is proved or refuted without another read;
* ``schemas``      per kind and type ``[schema_version_id, hash, generation, since]``, as of this commit;
* ``registered``   the schema documents that this commit introduces;
* ``outbox``       messages to send once this commit is on the chain, as documents that are not interpreted here;
* ``outbox_before``  the latest earlier manifest that has an outbox;
* ``lives``        per kind and type ``[[generation, end, purged, schema_version_id], ...]``: its lives that have ended;
* ``redacts``      the payload that this commit orders to be destroyed: a type, an identity, a span of commits;
* ``redacted``     the latest commit with ``redacts``, this one included;
* ``sinks``        per source of batches ``[last batch, commit]``, so that a repeated batch is recognized.

A ``full`` manifest has all of ``type_heads``, ``schemas``, ``lives`` and ``sinks``, any other what changed since
``base`` (null: removed). A plain writer's manifest has none of these fields.

A generation is the commit that began a type's present life. Files of earlier commits do not belong to this life.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict

from holdfast.base import codec
from holdfast.base.clock import parse_iso
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt
from holdfast.base.record import UNLESS_EMPTY, ControlRecord, Record
from holdfast.ontology.format.stats import FileStats, Stats
from holdfast.ontology.types.refs import (
    KINDS,
    FileRef,
    Kind,
    Life,
    Place,
    Position,
    SchemaRef,
    TypeHead,
    TypeId,
    file_refs,
    file_row,
    type_id,
)

V = TypeVar("V")
REDACTS = "redacts"

Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))]
"""Text that a plain writer may leave out."""


def _checked_time(text: str) -> str:
    if text:
        parse_iso(text)
    return text


def _file_refs(rows: Any) -> tuple[FileRef, ...]:
    try:
        return file_refs(rows)
    except MALFORMED as error:
        raise ValueError("not a list of files") from error


def _by_type(value: Any) -> Any:
    """``{"entity/Customer": x}`` or ``{"entity": {"Customer": x}}`` as ``{TypeId: x}``."""
    try:
        if all("/" in label for label in value):
            return {type_id(*label.split("/", 1)): each for label, each in value.items()}
        return {type_id(kind, name): each for kind, types in value.items() for name, each in types.items()}
    except MALFORMED as error:
        raise ValueError("not a mapping by types") from error


def _by_label(found: Mapping[TypeId, V]) -> dict[str, V]:
    return {each.label: value for each, value in found.items()}


def _by_kind(found: Mapping[TypeId, V]) -> dict[str, dict[str, V]]:
    return {kind: {each.name: value for each, value in found.items() if each.kind == kind} for kind in KINDS}


@dataclass(frozen=True)
class FileEntry(Record):
    """One data file, as a manifest describes it."""

    kind: Kind
    type_name: str
    path: str
    row_count: int = 0
    schema_version_id: Annotated[int, BeforeValidator(lambda value: value or 1)] = 1
    content_sha256: Text = ""
    stats: Annotated[Stats, UNLESS_EMPTY] = None

    @property
    def type_id(self) -> TypeId:
        return TypeId(self.kind, self.type_name)


@dataclass(frozen=True)
class Registered(Record):
    """A schema that a commit introduces, as a whole: all schema objects can be derived from the chain."""

    kind: Kind
    type_name: str
    schema_version_id: int
    schema_hash: str
    generation: int
    since: int
    schema: Document
    reason: Text = "register"

    @property
    def type_id(self) -> TypeId:
        return TypeId(self.kind, self.type_name)

    @property
    def ref(self) -> SchemaRef:
        return SchemaRef(self.schema_version_id, self.schema_hash, self.generation, self.since)


@dataclass(frozen=True)
class Summary(ControlRecord):
    """The fields that our manifests have beyond the specification."""

    WHAT = "a manifest"
    FORMAT = "holdfast.ontology.manifest"
    attempt_id: str
    full: bool
    base: Place | None
    skips: tuple[Place, ...]
    recent: Annotated[
        tuple[FileRef, ...], BeforeValidator(_file_refs), PlainSerializer(lambda refs: list(map(file_row, refs)))
    ]
    type_heads: Annotated[Mapping[TypeId, TypeHead | None], BeforeValidator(_by_type), PlainSerializer(_by_label)]
    schemas: Annotated[Mapping[TypeId, SchemaRef | None], BeforeValidator(_by_type), PlainSerializer(_by_kind)]
    recent_stats: tuple[Stats, ...] = ()
    """Of the recent files, in their order; without columns."""
    outbox_before: Annotated[Place | None, UNLESS_EMPTY] = None
    lives: Annotated[
        Mapping[TypeId, tuple[Life, ...]], BeforeValidator(_by_type), PlainSerializer(_by_kind), UNLESS_EMPTY
    ] = field(default_factory=dict)
    redacted: Annotated[Place | None, UNLESS_EMPTY] = None
    sinks: Annotated[Mapping[str, Position], UNLESS_EMPTY] = field(default_factory=dict)

    @property
    def stats(self) -> dict[str, FileStats]:
        """The statistics of recent files, by path."""
        pairs = zip(self.recent, self.recent_stats, strict=False)
        return {ref.path: each for ref, each in pairs if each is not None}


@dataclass(frozen=True)
class Manifest(Record):
    WHAT = "a manifest"
    commit_id: Annotated[int, Strict()]
    path: Annotated[str, Field(exclude=True)]
    parent: Annotated[Place | None, Field(exclude=True)]
    created_at: Annotated[Text, AfterValidator(_checked_time)]
    """Empty if a plain writer has left it out."""
    runtime_id: Text
    metadata: Annotated[Mapping[str, Any], BeforeValidator(lambda value: value if isinstance(value, Mapping) else {})]
    files: tuple[FileEntry, ...]
    registered: Annotated[tuple[Registered, ...], UNLESS_EMPTY] = ()
    summary: Annotated[Summary | None, Field(exclude=True)] = None
    """None for a plain writer's."""
    outbox: Annotated[tuple[Document, ...], UNLESS_EMPTY] = ()

    @property
    def place(self) -> Place:
        return Place(self.commit_id, self.path)

    @property
    def refs(self) -> tuple[FileRef, ...]:
        return tuple(FileRef(self.commit_id, entry.type_id, entry.path) for entry in self.files)

    @property
    def created_ns(self) -> int:
        """0 if the manifest does not say."""
        return parse_iso(self.created_at) if self.created_at else 0

    @property
    def touched(self) -> set[TypeId]:
        return {entry.type_id for entry in self.files}


def well_formed(manifest: Manifest) -> str | None:
    """What is wrong with a manifest; None if nothing is."""
    if manifest.commit_id < 1:
        return f"commit id {manifest.commit_id} is not positive"
    if manifest.parent is None and manifest.commit_id != 1:
        return f"commit {manifest.commit_id} has no parent"
    if manifest.parent is not None and manifest.parent.commit_id != manifest.commit_id - 1:
        return f"the parent of commit {manifest.commit_id} is {manifest.parent.commit_id}"
    if len(manifest.touched) != len(manifest.files):
        return "a type has two files"
    summary = manifest.summary
    if summary is not None:
        earlier: Iterable[Place | None] = (*summary.skips, summary.base, summary.outbox_before)
        if any(place is not None and place.commit_id >= manifest.commit_id for place in earlier):
            return "it points forward"
    return None


def parse(body: bytes, path: str) -> Manifest:
    """The manifest under ``path``; ``Corrupt`` if it is not a manifest."""
    document, summary = codec.decode(body, key=path), None
    if document.get("format") == Summary.FORMAT:
        codec.expect(document, format_name=Summary.FORMAT, newest=Summary.VERSION, key=path)
        summary = Summary.parse(document, key=path)
        document, summary = summary.extra, replace(summary, extra={})
    written = {"created_at": "", "runtime_id": "", "metadata": {}, **document}
    parent_id, parent_path = (written.pop(name, None) for name in ("parent_commit_id", "parent_manifest_path"))
    for name in ("format", "version"):
        written.pop(name, None)
    # A plain writer's first commit may name commit 0 as its parent, which has no manifest.
    parent = None if parent_path is None else (parent_id, parent_path)
    manifest = replace(Manifest.parse({**written, "path": path, "parent": parent}, key=path), summary=summary)
    if (fault := well_formed(manifest)) is not None:
        raise Corrupt(f"{path}: {fault}")
    return manifest


def compose(manifest: Manifest) -> bytes:
    if (fault := well_formed(manifest)) is not None:
        raise Corrupt(f"{manifest.path}: {fault}")
    parent, summary = manifest.parent, manifest.summary
    document = manifest.document(
        parent_commit_id=parent.commit_id if parent is not None else None,
        parent_manifest_path=parent.path if parent is not None else None,
    )
    if summary is not None:
        document |= summary.document(format=summary.FORMAT, version=summary.VERSION)
    return codec.encode(document)
