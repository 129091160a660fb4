"""Values in manifests and indexes: types, commits, files, and the head and the lives of a type. Pure.

The head of a type has a digest of its list of files, so a list from any source can be proved or refuted.
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
    """A commit on the chain, and the key of its manifest."""

    commit_id: int
    path: str


class FileRef(NamedTuple):
    """The file with the rows of one type that one commit wrote."""

    commit_id: int
    type_id: TypeId
    path: str


class TypeHead(NamedTuple):
    """The files of a type as of its last commit: their number, and a digest of their list."""

    commit_id: int
    files: int
    digest: str


class SchemaRef(NamedTuple):
    version_id: int
    hash: str
    generation: int
    since: int = 0
    """The commit whose manifest has the document under ``registered``."""

    @property
    def plain(self) -> bool:
        """Whether a plain writer's commit introduced it: the document is in the specification's list of versions."""
        return not self.hash


class Life(NamedTuple):
    """An ended life of a type. Its rows are in the commits from ``generation`` to before ``end``."""

    generation: int
    end: int
    """The commit that dropped the type."""
    purged: bool
    """Its rows are not shown any more, and their payload was destroyed."""
    version_id: int
    """The last version of its schema. Versions of the next life continue from it."""


class Position(NamedTuple):
    """The last committed batch of a source, and its commit."""

    batch: int
    commit_id: int


UNTOUCHED = TypeHead(0, 0, _NO_DIGEST)


def fold(head: TypeHead, files: Iterable[FileRef]) -> TypeHead:
    """The head after more files of the type."""
    for commit_id, _, path in sorted(files, key=lambda ref: (ref.commit_id, ref.path)):
        text = f"{head.digest} {commit_id} {path}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        head = TypeHead(commit_id, head.files + 1, digest)
    return head


def file_row(ref: FileRef) -> list[Any]:
    return [ref.commit_id, ref.type_id.kind, ref.type_id.name, ref.path]


def file_refs(rows: Iterable[Iterable[Any]]) -> tuple[FileRef, ...]:
    """The files of rows that ``file_row`` has made. Each type is made once."""
    types: dict[tuple[str, str], TypeId] = {}
    found: list[FileRef] = []
    for commit_id, kind, name, path in rows:
        of_type = types.get((kind, name))
        if of_type is None:
            of_type = types[kind, name] = type_id(kind, name)
        number = commit_id if type(commit_id) is int else whole(commit_id)
        found.append(FileRef(number, of_type, path if type(path) is str else str(path)))
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
