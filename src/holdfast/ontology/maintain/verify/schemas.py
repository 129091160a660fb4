"""The schema objects of the specification under a check, against the chain that they are derived from.

They are written after the commit that changed a schema, so that they may lag; ``schemas_commit`` says how far they
were. What contradicts the chain up to there, or goes beyond it, is the trace of somebody else, such as a migration by
other means that ended half way.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.base import codec
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import DERIVED
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.maintain.verify.findings import Finding
from holdfast.ontology.types.refs import SchemaRef, TypeId

_LISTS = {"entity": "entities", "relation": "relations"}


async def check_schemas(store: Store, ledger: Ledger) -> list[Finding]:
    if not ledger.schemas:
        return []  # a plain store: nothing on the chain to compare with
    found: list[Finding] = []
    try:
        types = await _document(store, layout.TYPES)
    except Corrupt as error:
        return [Finding("schema_objects_differ", layout.TYPES, str(error))]
    derived, known = types.get(DERIVED, 0), {kind: types.get(name, ()) for kind, name in _LISTS.items()}
    if not isinstance(derived, int) or not all(isinstance(each, list | tuple) for each in known.values()):
        return [Finding("schema_objects_differ", layout.TYPES, "it is no list of types")]
    for type_id, ref in sorted(ledger.schemas.items()):
        if ref.since > derived:
            continue  # still to be written
        if type_id.name not in known[type_id.kind]:
            found.append(Finding("schema_objects_differ", layout.TYPES, f"it does not know {type_id.label}"))
        key = layout.versions_key(*type_id)
        try:
            found += _versions(await _document(store, key), type_id, ref, key)
        except Corrupt as error:
            found.append(Finding("schema_objects_differ", key, str(error)))
    return found


def _versions(document: dict[str, Any], type_id: TypeId, ref: SchemaRef, key: str) -> Iterator[Finding]:
    versions = document.get("versions", ())
    listed = {
        each["schema_version_id"]: each
        for each in (versions if isinstance(versions, list) else ())
        if isinstance(each, dict) and isinstance(each.get("schema_version_id"), int)
    }
    own = listed.get(ref.version_id)
    if own is None:
        yield Finding("schema_objects_differ", key, f"{type_id.label}: it lacks version {ref.version_id}")
    elif own.get("schema_hash") != ref.hash:
        message = f"{type_id.label}: version {ref.version_id} is another schema than the chain's"
        yield Finding("schema_objects_differ", key, message)
    later = [number for number in listed if number > ref.version_id]
    if later:
        message = (
            f"{type_id.label}: it lists version {max(later)}, and the chain has {ref.version_id}: half a migration"
        )
        yield Finding("schema_objects_differ", key, message)


async def _document(store: Store, key: str) -> dict[str, Any]:
    found = await store.find(key)
    if found is None:
        return {}
    return codec.decode(found.body, key=key)
