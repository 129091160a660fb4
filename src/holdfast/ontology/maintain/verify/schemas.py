"""The schema objects of the specification under a check, against the chain that they are derived from.

They are written after the commit that changed a schema, so that they may lag; ``schemas_commit`` says how far they
were. What contradicts the chain up to there, or goes beyond it, is the trace of somebody else, such as a migration by
other means that ended half way.
"""

from typing import Any

from holdfast.base import codec
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import DERIVED, alike, chained_schema
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.schema_objects import Versions
from holdfast.ontology.maintain.verify.findings import Finding
from holdfast.ontology.types.refs import TypeId

_LISTS = {"entity": "entities", "relation": "relations"}


async def check_schemas(store: Store, ledger: Ledger) -> list[Finding]:
    if not ledger.schemas:
        return []  # a plain store: nothing on the chain to compare with
    found: list[Finding] = []
    chain = Chain(store)
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
            versions = Versions.parse(await _document(store, key), key=key)
            found += await _versions(chain, ledger, type_id, versions, key)
        except Corrupt as error:
            found.append(Finding("schema_objects_differ", key, str(error)))
    return found


async def _versions(chain: Chain, ledger: Ledger, type_id: TypeId, known: Versions, key: str) -> list[Finding]:
    found: list[Finding] = []
    name, ref = type_id.label, ledger.schemas[type_id]
    own = next((each for each in known.versions if each.schema_version_id == ref.version_id), None)
    if own is None:
        found.append(Finding("schema_objects_differ", key, f"{name}: it lacks version {ref.version_id}"))
    elif (
        not ref.plain
        and own.schema_hash != ref.hash
        and not alike(own, await chained_schema(chain, ledger, type_id, ref))
    ):
        message = f"{name}: version {ref.version_id} is another schema than the chain's"
        found.append(Finding("schema_objects_differ", key, message))
    latest = known.latest
    if latest is not None and latest.schema_version_id > ref.version_id:
        message = f"{name}: it lists version {latest.schema_version_id}, and the chain has {ref.version_id}"
        found.append(Finding("schema_version_ahead", key, f"{message}: half a migration"))
    return found


async def _document(store: Store, key: str) -> dict[str, Any]:
    found = await store.find(key)
    if found is None:
        return {}
    return codec.decode(found.body, key=key)
