"""The head: the one object whose compare-and-swap decides what is committed. Parse, compose, invariant, read.

It has the four fields of the specification plus ``write_id``, which makes every body unique (equal bytes would have
equal versions). A plain writer may drop the id: nothing that safety needs rests on it, because "is my commit in there?"
is asked of the chain of manifests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import codec
from holdfast.base.errors import Corrupt
from holdfast.objects.store import CREATE, Create, IfMatch, Object, Store, Version
from holdfast.ontology.format import layout
from holdfast.ontology.types.refs import Place

_KNOWN = {"commit_id", "manifest_path", "updated_at", "runtime_id", "write_id"}


@dataclass(frozen=True, slots=True)
class Head:
    """The head as it was read. Without a version there is no such object yet."""

    commit_id: int = 0
    manifest_path: str | None = None
    updated_at: str = ""
    runtime_id: str = ""
    version: Version | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> Place | None:
        return None if self.manifest_path is None else Place(self.commit_id, self.manifest_path)

    @property
    def condition(self) -> Create | IfMatch:
        """What must still hold when this head is replaced."""
        return CREATE if self.version is None else IfMatch(self.version)

    def body(self, write_id: str) -> bytes:
        if (fault := well_formed(self)) is not None:
            raise Corrupt(f"{layout.HEAD}: {fault}")
        return codec.encode(
            {
                **self.extra,
                "commit_id": self.commit_id,
                "manifest_path": self.manifest_path,
                "updated_at": self.updated_at,
                "runtime_id": self.runtime_id,
                "write_id": write_id,
            }
        )


def well_formed(head: Head) -> str | None:
    """``manifest_path`` is there if and only if ``commit_id`` is at least 1."""
    if head.commit_id < 0:
        return f"commit id {head.commit_id} is negative"
    if (head.commit_id >= 1) != (head.manifest_path is not None):
        return f"commit id is {head.commit_id} and the manifest's path {head.manifest_path!r}"
    return None


def parse(found: Object | None) -> Head:
    if found is None:
        return Head()
    document = codec.decode(found.body, key=found.key)
    commit_id, path = document.get("commit_id"), document.get("manifest_path")
    if not isinstance(commit_id, int) or isinstance(commit_id, bool) or not isinstance(path, str | None):
        raise Corrupt(f"{found.key}: commit_id is {commit_id!r} and manifest_path {path!r}")
    head = Head(
        commit_id,
        path,
        str(document.get("updated_at", "")),
        str(document.get("runtime_id", "")),
        found.version,
        {name: value for name, value in document.items() if name not in _KNOWN},
    )
    if (fault := well_formed(head)) is not None:
        raise Corrupt(f"{found.key}: {fault}")
    return head


async def read_head(store: Store) -> Head:
    return parse(await store.find(layout.HEAD))
