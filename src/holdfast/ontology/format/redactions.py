"""Redactions as records: which payload was destroyed, in which files. The one exception to "files never change".

A commit whose manifest has ``redacts`` says what must go; ``maintain.redact`` does it, and then writes a record under
``meta/redactions/``. Until the record is there the redaction is not finished, and copies of the files are not reliable.
Manifests lead from one redaction to the one before (``redacted``), so a copy is brought up to date by walking back to
the last one that it knows.
"""

import json
from dataclasses import dataclass
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.objects.cache import DiskCache
from holdfast.objects.client import Client
from holdfast.objects.store import Store
from holdfast.ontology.format import layout
from holdfast.ontology.format.manifest import REDACTS, Manifest
from holdfast.ontology.format.stats import FileStats
from holdfast.ontology.types.refs import Place, TypeId, type_id

FORMAT = "holdfast.ontology.redaction"
_ERASED = '{"_erased":true'


def erased_text(key_field: str | None, fields_json: str) -> str:
    """The ``fields_json`` of a row when its payload is erased: the key is left, where there is one among the fields."""
    known = json.loads(fields_json)
    if key_field is None or key_field not in known:
        return f"{_ERASED}}}"
    return f"{_ERASED},{json.dumps(key_field)}:{json.dumps(known[key_field], ensure_ascii=False)}}}"


def is_erased(fields_json: str) -> bool:
    return fields_json.startswith(_ERASED)


@dataclass(frozen=True, slots=True)
class Redaction:
    """What a commit says must go: all rows of a type, or the payload of one identity, in a span of commits."""

    type_id: TypeId
    identity: tuple[str, ...] | None
    first: int
    last: int
    key_field: str | None = None
    """The field whose column holds the key, which stays."""

    def document(self) -> Document:
        return {
            "kind": self.type_id.kind,
            "type_name": self.type_id.name,
            "key": list(self.identity) if self.identity is not None else None,
            "first": self.first,
            "last": self.last,
            "key_field": self.key_field,
        }


def redaction_of(manifest: Manifest) -> Redaction | None:
    """What the commit redacts, if it is one of that sort."""
    found: Any = manifest.extra.get(REDACTS)
    if found is None:
        return None
    try:
        key, field = found["key"], found.get("key_field")
        identity = tuple(map(str, key)) if key is not None else None
        of_type = type_id(found["kind"], found["type_name"])
        return Redaction(of_type, identity, int(found["first"]), int(found["last"]), field)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{manifest.path}: {REDACTS} is {found!r}") from error


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file of a commit whose bytes are others now."""

    path: str
    manifest_path: str
    sha256_before: str
    sha256_after: str
    stats: FileStats | None = None


def record_body(files: list[Rewritten], manifests: list[str], place: Place, finished_at: str) -> bytes:
    """``manifests`` are those that changed besides the ones of the files."""
    listed = [
        {
            "path": each.path,
            "manifest_path": each.manifest_path,
            "sha256_before": each.sha256_before,
            "sha256_after": each.sha256_after,
        }
        for each in files
    ]
    document: Document = {"commit_id": place.commit_id, "files": listed, "finished_at": finished_at}
    if manifests:
        document["manifests"] = sorted(manifests)
    return codec.encode(codec.stamp(document, format_name=FORMAT, version=1, write_id=place.path))


async def finished(store: Store, place: Place) -> bool:
    return await store.find(layout.redaction_key(place.path)) is not None


async def rewritten(store: Store, place: Place) -> list[str] | None:
    """The keys whose bytes a redaction has changed; None while it is not finished."""
    key = layout.redaction_key(place.path)
    found = await store.find(key)
    if found is None:
        return None
    document = codec.decode(found.body, key=key)
    codec.expect(document, format_name=FORMAT, newest=1, key=key)
    files = [path for each in document["files"] for path in (str(each["path"]), str(each["manifest_path"]))]
    return [*files, *map(str, document.get("manifests", ()))]


def disk_cache(store: Store) -> DiskCache | None:
    return store.cache if isinstance(store, Client) else None


def uncached(store: Store) -> Store:
    """The same store, read without its disk cache."""
    return store.uncached() if isinstance(store, Client) else store
