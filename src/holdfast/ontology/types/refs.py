"""What manifests and indexes speak of: types, places on the chain, files, a type's head and its lives. Pure.

The head of a type folds its list of files into a digest, so that a list from anywhere is proved or refuted by it.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

Kind = Literal["entity", "relation"]
KINDS: tuple[Kind, Kind] = ("entity", "relation")

_NO_DIGEST = ""


class TypeId(NamedTuple):
    kind: Kind
    name: str

    @property
    def label(self) -> str:
        return f"{self.kind}/{self.name}"


class Place(NamedTuple):
    """A manifest on the chain."""

    commit_id: int
    path: str


class FileRef(NamedTuple):
    """Where rows of one type are, written by one commit."""

    commit_id: int
    type_id: TypeId
    path: str


class TypeHead(NamedTuple):
    """What the chain says of one type's files, as of one commit."""

    commit_id: int
    files: int
    digest: str


class SchemaRef(NamedTuple):
    version_id: int
    hash: str
    generation: int
    since: int = 0
    """The commit whose manifest has the document, under ``registered``."""

    @property
    def plain(self) -> bool:
        """A plain writer's commit has introduced it: the document is in the specification's list of versions."""
        return not self.hash


class Life(NamedTuple):
    """A life of a type that has ended: its rows are those of the commits from ``generation`` on, before ``end``."""

    generation: int
    end: int
    """The commit that dropped the type."""
    purged: bool
    """Its rows are shown nowhere any more, and their payload was destroyed."""
    version_id: int
    """The last version of its schema: the next life counts on from there."""


class Position(NamedTuple):
    """How far a source of batches has come: the last of its batches that is committed, and by which commit."""

    batch: int
    commit_id: int


UNTOUCHED = TypeHead(0, 0, _NO_DIGEST)


def fold(head: TypeHead, files: Iterable[FileRef]) -> TypeHead:
    """``head`` after more files of the type, in the order of their commits."""
    for commit_id, _, path in sorted(files, key=lambda ref: (ref.commit_id, ref.path)):
        text = f"{head.digest} {commit_id} {path}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        head = TypeHead(commit_id, head.files + 1, digest)
    return head


def file_row(ref: FileRef) -> list[Any]:
    return [ref.commit_id, ref.type_id.kind, ref.type_id.name, ref.path]


def file_refs(rows: Iterable[Iterable[Any]]) -> tuple[FileRef, ...]:
    """What ``file_row`` makes rows of. Their types are few, and each is made once."""
    types: dict[tuple[str, str], TypeId] = {}
    found: list[FileRef] = []
    for commit_id, kind, name, path in rows:
        known = types.get((kind, name))
        if known is None:
            known = types[kind, name] = type_id(kind, name)
        number = commit_id if type(commit_id) is int else whole(commit_id)
        found.append(FileRef(number, known, path if type(path) is str else str(path)))
    return tuple(found)


def type_id(kind: str, name: str) -> TypeId:
    if kind == "entity":
        return TypeId("entity", str(name))
    if kind == "relation":
        return TypeId("relation", str(name))
    raise ValueError(f"{kind!r} is neither entity nor relation")


def whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return value
