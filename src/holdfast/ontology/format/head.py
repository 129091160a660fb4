"""The head: the one object whose compare-and-swap decides what is committed.

It has the four fields of the specification, and ``write_id``, which makes every body unique (equal bytes would have
equal versions). A plain writer may drop the id. Nothing that safety needs rests on it: the chain of manifests shows
whether a commit is in it.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, Strict

from holdfast.base import codec
from holdfast.base.errors import Corrupt
from holdfast.base.record import Record
from holdfast.objects.store import CREATE, Create, IfMatch, Object, Store, Version
from holdfast.ontology.format import layout
from holdfast.ontology.format.manifest import Text
from holdfast.ontology.types.refs import Place


@dataclass(frozen=True)
class Head(Record):
    """The head as it was read. Without a version the object does not exist yet."""

    WHAT = "a head"
    commit_id: Annotated[int, Strict()] = 0
    manifest_path: str | None = None
    updated_at: Text = ""
    runtime_id: Text = ""
    version: Annotated[Version | None, Field(exclude=True)] = None

    @property
    def place(self) -> Place | None:
        return None if self.manifest_path is None else Place(self.commit_id, self.manifest_path)

    @property
    def condition(self) -> Create | IfMatch:
        """The condition for replacing this head."""
        return CREATE if self.version is None else IfMatch(self.version)

    def body(self, write_id: str) -> bytes:
        if (fault := well_formed(self)) is not None:
            raise Corrupt(f"{layout.HEAD}: {fault}")
        return codec.encode(self.document(write_id=write_id))


def well_formed(head: Head) -> str | None:
    """``manifest_path`` is set if and only if ``commit_id`` is at least 1. Returns what is wrong, or None."""
    if head.commit_id < 0:
        return f"commit id {head.commit_id} is negative"
    if (head.commit_id >= 1) != (head.manifest_path is not None):
        return f"commit id is {head.commit_id} and the manifest's path {head.manifest_path!r}"
    return None


def parse(found: Object | None) -> Head:
    if found is None:
        return Head()
    document = codec.decode(found.body, key=found.key)
    head = Head.parse({"commit_id": None, **document, "version": found.version}, key=found.key)
    if (fault := well_formed(head)) is not None:
        raise Corrupt(f"{found.key}: {fault}")
    return head


async def read_head(store: Store) -> Head:
    return parse(await store.find(layout.HEAD))
