"""Manifests as documents: parse, compose, invariants. Pure.

A manifest has the fields of the specification. Ours carry more, so that readers need not walk a long chain:

* ``attempt_id``   128 bits: distinguishes two writers that drew the same eight characters for their key;
* ``skips``        ``[[commit_id, path], ...]``: of every power of two, the latest earlier commit that it divides. Any
  ancestor is reached in O(log n) reads;
* ``base``         the latest earlier manifest that is ``full``, or null;
* ``recent``       ``[[commit_id, kind, type, path], ...]``: the files of all commits after ``base``, this one included;
* ``recent_stats`` rows, bytes and key range of each of them, or null; ``files`` have the same and more, as ``stats``;
* ``type_heads``   per type ``[last commit, files, digest]``; the digest folds the type's whole list of files, so a list
  from an index or a checkpoint, which may lie, is proved or refuted without another read;
* ``schemas``      per kind and type ``[schema_version_id, hash, generation, since]``, as of this commit;
* ``registered``   the schema documents that this commit introduces;
* ``outbox``       messages to send once this commit is on the chain, as documents that are not interpreted here;
* ``outbox_before``  the latest earlier manifest that has one;
* ``lives``        per kind and type ``[[generation, end, purged, schema_version_id], ...]``: its lives that have ended;
* ``redacts``      of a commit that destroys payload: of which type, which identity, up to which commit;
* ``redacted``     the latest commit of that sort, this one included;
* ``sinks``        per source of batches ``[last batch, commit]``: a batch that comes again is known by it.

A ``full`` manifest has the whole of ``type_heads``, ``schemas``, ``lives`` and ``sinks``, any other only what changed
since ``base`` (null: gone). The manifest of a plain writer has none of these; a reader walks past it to the next that
does.

A generation is the commit that gave a type its present life: files of earlier commits are not this type's any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import codec
from holdfast.base.clock import parse_iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.ontology.format.stats import FileStats, parse_stats
from holdfast.ontology.types.refs import (
    KINDS,
    FileRef,
    Life,
    Place,
    Position,
    SchemaRef,
    TypeHead,
    TypeId,
    file_refs,
    file_row,
    type_id,
    whole,
)

FORMAT = "holdfast.ontology.manifest"
VERSION = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One data file, as a manifest describes it."""

    type_id: TypeId
    path: str
    row_count: int
    schema_version_id: int
    content_sha256: str
    stats: FileStats | None = None

    def document(self) -> Document:
        document: Document = {
            "kind": self.type_id.kind,
            "type_name": self.type_id.name,
            "path": self.path,
            "row_count": self.row_count,
            "schema_version_id": self.schema_version_id,
            "content_sha256": self.content_sha256,
        }
        if self.stats is not None:
            document["stats"] = self.stats.document()
        return document


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema that a commit introduces: the whole document, so that everything else can be derived from the chain."""

    type_id: TypeId
    ref: SchemaRef
    schema: Document
    reason: str = "register"

    def document(self) -> Document:
        return {
            "kind": self.type_id.kind,
            "type_name": self.type_id.name,
            "schema_version_id": self.ref.version_id,
            "schema_hash": self.ref.hash,
            "generation": self.ref.generation,
            "since": self.ref.since,
            "schema": self.schema,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """The fields that our manifests have beyond the specification."""

    attempt_id: str
    full: bool
    base: Place | None
    skips: tuple[Place, ...]
    recent: tuple[FileRef, ...]
    type_heads: Mapping[TypeId, TypeHead | None]
    schemas: Mapping[TypeId, SchemaRef | None]
    stats: Mapping[str, FileStats] = field(default_factory=dict)
    """Of the recent files, by path; without columns."""
    outbox_before: Place | None = None
    lives: Mapping[TypeId, tuple[Life, ...]] = field(default_factory=dict)
    redacted: Place | None = None
    sinks: Mapping[str, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    commit_id: int
    path: str
    parent: Place | None
    created_at: str
    """Empty if a plain writer has left it out."""
    runtime_id: str
    metadata: Mapping[str, Any]
    files: tuple[FileEntry, ...]
    registered: tuple[Registered, ...] = ()
    summary: Summary | None = None
    """None for a plain writer's."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    outbox: tuple[Document, ...] = ()

    @property
    def place(self) -> Place:
        return Place(self.commit_id, self.path)

    @property
    def refs(self) -> tuple[FileRef, ...]:
        return tuple(FileRef(self.commit_id, entry.type_id, entry.path) for entry in self.files)

    @property
    def created_ns(self) -> int:
        """0 where the manifest does not say."""
        return parse_iso(self.created_at) if self.created_at else 0

    @property
    def touched(self) -> set[TypeId]:
        return {entry.type_id for entry in self.files}


def well_formed(manifest: Manifest) -> str | None:
    """What is wrong with a manifest, in a few words; None if nothing is."""
    if manifest.commit_id < 1:
        return f"commit id {manifest.commit_id} is not positive"
    if manifest.parent is None and manifest.commit_id != 1:
        return f"commit {manifest.commit_id} has no parent"
    if manifest.parent is not None and manifest.parent.commit_id != manifest.commit_id - 1:
        return f"the parent of commit {manifest.commit_id} is {manifest.parent.commit_id}"
    if len(types := [entry.type_id for entry in manifest.files]) != len(set(types)):
        return "a type has two files"
    summary = manifest.summary
    if summary is not None:
        behind = (*summary.skips, *(each for each in (summary.base, summary.outbox_before) if each is not None))
        if any(place.commit_id >= manifest.commit_id for place in behind):
            return "it points forward"
    return None


def parse(body: bytes, path: str) -> Manifest:
    """The manifest under ``path``; ``Corrupt`` if it is none."""
    document = codec.decode(body, key=path)
    try:
        manifest = _parse(document, path)
    except codec.MALFORMED as error:
        raise Corrupt(f"{path}: not a manifest ({error!r})") from error
    if (fault := well_formed(manifest)) is not None:
        raise Corrupt(f"{path}: {fault}")
    return manifest


def compose(manifest: Manifest) -> bytes:
    if (fault := well_formed(manifest)) is not None:
        raise Corrupt(f"{manifest.path}: {fault}")
    parent = manifest.parent
    document: Document = {
        **manifest.extra,
        "commit_id": manifest.commit_id,
        "parent_commit_id": parent.commit_id if parent is not None else None,
        "parent_manifest_path": parent.path if parent is not None else None,
        "created_at": manifest.created_at,
        "runtime_id": manifest.runtime_id,
        "metadata": dict(manifest.metadata),
        "files": [entry.document() for entry in manifest.files],
    }
    if manifest.registered:
        document["registered"] = [each.document() for each in manifest.registered]
    if manifest.outbox:
        document["outbox"] = list(manifest.outbox)
    if manifest.summary is not None:
        document |= _summary_document(manifest.summary)
    return codec.encode(document)


_KNOWN = {
    "commit_id",
    "parent_commit_id",
    "parent_manifest_path",
    "created_at",
    "runtime_id",
    "metadata",
    "files",
    "registered",
    "format",
    "version",
    "attempt_id",
    "full",
    "base",
    "skips",
    "recent",
    "recent_stats",
    "type_heads",
    "schemas",
    "outbox",
    "outbox_before",
    "lives",
    "redacted",
    "sinks",
}
REDACTS = "redacts"


def _parse(document: Document, path: str) -> Manifest:
    commit_id = whole(document["commit_id"])
    parent_path = document.get("parent_manifest_path")
    parent_id = document.get("parent_commit_id")
    created_at = document.get("created_at") or ""
    metadata = document.get("metadata") or {}
    if created_at:
        parse_iso(created_at)
    return Manifest(
        commit_id=commit_id,
        path=path,
        # A plain writer's first commit may name commit 0 as its parent, which has no manifest.
        parent=Place(whole(parent_id), str(parent_path)) if parent_path is not None else None,
        created_at=created_at,
        runtime_id=str(document.get("runtime_id", "")),
        metadata=metadata if isinstance(metadata, Mapping) else {},
        files=tuple(map(_parse_file, document["files"])),
        registered=tuple(map(_parse_registered, document.get("registered", ()))),
        summary=_parse_summary(document, path),
        extra={name: value for name, value in document.items() if name not in _KNOWN},
        outbox=tuple(document.get("outbox", ())),
    )


def _parse_file(entry: Document) -> FileEntry:
    return FileEntry(
        type_id=type_id(entry["kind"], entry["type_name"]),
        path=str(entry["path"]),
        row_count=int(entry.get("row_count", 0)),
        schema_version_id=int(entry.get("schema_version_id") or 1),
        content_sha256=str(entry.get("content_sha256", "")),
        stats=parse_stats(entry.get("stats")),
    )


def _parse_registered(each: Document) -> Registered:
    ref = _parse_ref([each[name] for name in ("schema_version_id", "schema_hash", "generation", "since")])
    return Registered(type_id(each["kind"], each["type_name"]), ref, dict(each["schema"]), str(each.get("reason", "")))


def _parse_summary(document: Document, path: str) -> Summary | None:
    if document.get("format") != FORMAT:
        return None
    codec.expect(document, format_name=FORMAT, newest=VERSION, key=path)
    base, outbox_before = document["base"], document.get("outbox_before")
    schemas = document["schemas"]
    recent = file_refs(document["recent"])
    stats = zip(recent, map(parse_stats, document.get("recent_stats") or ()), strict=False)
    return Summary(
        attempt_id=str(document["attempt_id"]),
        full=bool(document["full"]),
        base=_parse_place(base),
        skips=tuple(Place(int(number), str(at)) for number, at in document["skips"]),
        recent=recent,
        stats={ref.path: each for ref, each in stats if each is not None},
        type_heads={
            type_id(*label.split("/", 1)): TypeHead(int(value[0]), int(value[1]), str(value[2])) if value else None
            for label, value in document["type_heads"].items()
        },
        schemas={
            type_id(kind, name): _parse_ref(value) if value else None
            for kind, types in schemas.items()
            for name, value in types.items()
        },
        outbox_before=Place(int(outbox_before[0]), str(outbox_before[1])) if outbox_before is not None else None,
        lives={
            type_id(kind, name): tuple(Life(int(a), int(b), bool(c), int(d)) for a, b, c, d in listed)
            for kind, types in document.get("lives", {}).items()
            for name, listed in types.items()
        },
        redacted=_parse_place(document.get("redacted")),
        sinks={str(name): Position(int(a), int(b)) for name, (a, b) in document.get("sinks", {}).items()},
    )


def _parse_place(value: list[Any] | None) -> Place | None:
    return Place(int(value[0]), str(value[1])) if value is not None else None


def _parse_ref(value: list[Any]) -> SchemaRef:
    version_id, digest, generation, since = value
    return SchemaRef(int(version_id), str(digest), int(generation), int(since))


def _summary_document(summary: Summary) -> Document:
    schemas: dict[str, dict[str, list[Any] | None]] = {kind: {} for kind in KINDS}
    for each, ref in summary.schemas.items():
        schemas[each.kind][each.name] = list(ref) if ref is not None else None
    lives: dict[str, dict[str, list[Any]]] = {}
    for each, listed in summary.lives.items():
        lives.setdefault(each.kind, {})[each.name] = [list(life) for life in listed]
    return {
        "format": FORMAT,
        "version": VERSION,
        "attempt_id": summary.attempt_id,
        "full": summary.full,
        "base": list(summary.base) if summary.base is not None else None,
        "skips": [list(place) for place in summary.skips],
        "recent": [file_row(ref) for ref in summary.recent],
        "recent_stats": [
            summary.stats[ref.path].document() if ref.path in summary.stats else None for ref in summary.recent
        ],
        "type_heads": {
            each.label: list(head) if head is not None else None for each, head in summary.type_heads.items()
        },
        "schemas": schemas,
        **({} if summary.outbox_before is None else {"outbox_before": list(summary.outbox_before)}),
        **({"lives": lives} if lives else {}),
        **({"redacted": list(summary.redacted)} if summary.redacted is not None else {}),
        **({"sinks": {name: list(each) for name, each in sorted(summary.sinks.items())}} if summary.sinks else {}),
    }
