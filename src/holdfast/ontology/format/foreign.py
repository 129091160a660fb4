"""What the commits of a plain writer change about types. Pure.

A plain writer has no lives and no schema map in its manifests. It drops and migrates types by commits, too:

* A drop is a commit without files. ``dropped.json`` then names the type, the commit and whether its rows are purged,
  until the type is registered again. The writer's own note in the manifest stays: ``{"operation": "schema_drop",
  "affected_types": "[{kind, type_name}, ...]"}``. A drop of which ``dropped.json`` says nothing (it was cleared, or is
  not written yet) counts as a purge, because this writer drops types with rows only so.
* A migration is a commit whose files, or whose note ``{"kind": "migration", "migrated_types": [...]}``, have a later
  version than the chain knows of. The schema itself is in ``versions/``, which is written after the head.

Both count from their commit on, like those of our own manifests.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.format.schema_objects import Dropped
from holdfast.ontology.types.refs import SchemaRef, TypeId, type_id


def dropped_types(manifest: Manifest, dropped: Dropped) -> Mapping[TypeId, bool]:
    """The types that a plain writer's commit ends, and whether they are purged."""
    found = dict.fromkeys(_noted_drops(manifest), True)
    for kind, types in dropped.types.items():
        for name, record in types.items():
            if record.commit_id == manifest.commit_id:
                found[TypeId(kind, name)] = record.purged
    return found


def migrated_types(manifest: Manifest, schemas: Mapping[TypeId, SchemaRef]) -> Mapping[TypeId, SchemaRef]:
    """The types of ``schemas`` that have a later version by a plain writer's commit."""
    versions: dict[TypeId, int] = {}
    for each, version in (*((entry.type_id, entry.schema_version_id) for entry in manifest.files), *_noted(manifest)):
        versions[each] = max(version, versions.get(each, 0))
    return {
        each: ref._replace(version_id=versions[each], hash="", since=manifest.commit_id)
        for each, ref in schemas.items()
        if versions.get(each, 0) > ref.version_id
    }


def _noted_drops(manifest: Manifest) -> Iterator[TypeId]:
    if manifest.files or manifest.metadata.get("operation") != "schema_drop":
        return
    try:
        listed = json.loads(str(manifest.metadata.get("affected_types")))
    except ValueError:
        return
    for each in _documents(listed):
        if each.get("kind") in ("entity", "relation"):
            yield type_id(each["kind"], str(each.get("type_name")))


def _noted(manifest: Manifest) -> Iterator[tuple[TypeId, int]]:
    if manifest.metadata.get("kind") != "migration":
        return
    for each in _documents(manifest.metadata.get("migrated_types")):
        version = each.get("to_schema_version_id")
        if each.get("type_kind") in ("entity", "relation") and isinstance(version, int):
            yield type_id(each["type_kind"], str(each.get("type_name"))), version


def _documents(listed: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(listed, list):
        yield from (each for each in listed if isinstance(each, Mapping))
