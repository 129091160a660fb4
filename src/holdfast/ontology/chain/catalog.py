"""The schema objects of the specification: how a schema is read, and how these objects follow the chain.

For our commits they are derived from the chain, for plain readers; what counts is the schema map of the manifests. They
are written after the commit that changed the map, each over the version that was read, so that entries of other writers
stay. The list of types comes last. It says up to which commit all of them were derived (``schemas_commit``), so the
next session sees in one read what a crash has left out. A plain writer registers, migrates and drops types in these
objects: see ``format.chainstate``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.store import Object, Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.edits import edit
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.schema_objects import Dropped, DroppedType, Registry, SchemaVersion, Types, Versions
from holdfast.ontology.types.errors import SchemaPending
from holdfast.ontology.types.refs import KINDS, SchemaRef, TypeId
from holdfast.ontology.types.schema import diff, plain_schema
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema

DERIVED = "schemas_commit"

# --- reading a schema ---


@dataclass(frozen=True, slots=True)
class Stored:
    """A schema that the store has."""

    ref: SchemaRef
    schema: Document
    reason: str = "register"


async def stored_schema(store: Store, type_id: TypeId) -> Stored | None:
    """The latest version in the specification's list of versions; None if there is none that can be read."""
    key = layout.versions_key(*type_id)
    found = await store.find(key)
    if found is None:
        return None
    try:
        latest = Versions.parse(codec.decode(found.body, key=key), key=key).latest
        schema = json.loads(latest.schema_json) if latest is not None else None
    except (HoldfastError, ValueError):
        return None
    if latest is None or not isinstance(schema, dict):
        return None
    return Stored(SchemaRef(latest.schema_version_id, latest.schema_hash, 0), schema)


async def chained_schema(chain: Chain, ledger: Ledger, type_id: TypeId, ref: SchemaRef) -> Stored:
    """The schema that the chain names, from the manifest that introduced it."""
    if ref.plain:
        return await migrated_schema(chain.store, type_id, ref)
    place = await chain.at(ledger.place, ref.since)
    manifest = await chain.manifest(place) if place is not None else None
    for each in manifest.registered if manifest is not None else ():
        if each.type_id == type_id:
            return Stored(each.ref, each.schema, each.reason or "register")
    raise Corrupt(f"{type_id.label}: commit {ref.since} should register its schema, and does not")


async def migrated_schema(store: Store, type_id: TypeId, ref: SchemaRef) -> Stored:
    """The schema that a plain writer's commit introduced. ``SchemaPending`` if it is not in the list yet."""
    latest = await stored_schema(store, type_id)
    if latest is None or latest.ref.version_id < ref.version_id:
        raise SchemaPending(
            f"{type_id.label}: commit {ref.since} has rows of version {ref.version_id}, and "
            f"{layout.versions_key(*type_id)} does not list it",
            remedy="another program writes it after its commit: try again; if it has crashed, run its migration again",
        )
    return latest


async def schema_at(chain: Chain, ledger: Ledger, type_id: TypeId) -> Stored | None:
    """The schema of a type at a ledger's commit; where the chain has none, what a plain writer registered, if any."""
    ref = ledger.schemas.get(type_id)
    if ref is None:
        return await stored_schema(chain.store, type_id)
    return await chained_schema(chain, ledger, type_id, ref)


async def chained_type(chain: Chain, ledger: Ledger, type_id: TypeId) -> TypeInfo | None:
    """A type by the schema that the chain has; None for one that only plain writers registered."""
    ref = ledger.schemas.get(type_id)
    if ref is None:
        return None
    return of_schema(type_id, (await chained_schema(chain, ledger, type_id, ref)).schema, version_id=ref.version_id)


def same_schema(listed: SchemaVersion, stored: Stored) -> bool:
    """Whether a listed version is the schema of the chain, perhaps in the spelling of another program."""
    try:
        return listed.schema_hash == stored.ref.hash or not diff(json.loads(listed.schema_json), stored.schema)
    except (ValueError, AttributeError):
        return False


# --- writing what is derived from the chain ---


def _ended(ledger: Ledger) -> set[TypeId]:
    """Types that were dropped and have no new life."""
    return {each for each in ledger.lives if each not in ledger.schemas and each not in ledger.heads}


def _derived_from(ledger: Ledger) -> int:
    """The last commit that changed a schema, or ended a type."""
    ends = (lives[-1].end for lives in ledger.lives.values())
    return max((*(ref.since for ref in ledger.schemas.values()), *ends), default=0)


def _readable(found: Object | None) -> Document:
    """The document of an object; empty if there is none, or if it is not JSON."""
    try:
        return codec.decode(found.body, key=found.key) if found is not None else {}
    except Corrupt:
        return {}


class Catalog:
    def __init__(self, store: Store, ambient: Ambient, runtime_id: str) -> None:
        self._store = store
        self._ambient = ambient
        self._runtime_id = runtime_id

    async def sync(self, chain: Chain, ledger: Ledger, *, repair: bool = False) -> None:
        """Write what changed up to the ledger's commit; with ``repair`` derive all of it again."""
        found = await self._store.find(layout.TYPES)
        noted = _readable(found).get(DERIVED, 0)
        derived = noted if isinstance(noted, int) and not repair else 0
        behind = {each: ref for each, ref in ledger.schemas.items() if ref.since > derived and not ref.plain}
        if ledger.lives:
            await self._edit(layout.DROPPED, partial(self._dropped, ledger))
        if found is not None and not behind and derived == _derived_from(ledger):
            return
        documents = {each: await chained_schema(chain, ledger, each, ref) for each, ref in behind.items()}
        for type_id, stored in documents.items():
            await self._edit(layout.versions_key(*type_id), partial(self._versions, type_id, stored))
        if documents or ledger.lives:
            await self._edit(layout.REGISTRY, partial(self._registry, ledger, documents))
        await self._edit(layout.TYPES, partial(self._types, ledger))

    def _types(self, ledger: Ledger, document: Document) -> Document:
        """Names that others have added stay."""
        types = Types.parse(document, key=layout.TYPES)
        ours = {kind: {each.name for each in (*ledger.schemas, *ledger.heads) if each.kind == kind} for kind in KINDS}
        ended = {kind: {each.name for each in _ended(ledger) if each.kind == kind} for kind in KINDS}
        after = replace(
            types,
            entities=(types.entities - ended["entity"]) | ours["entity"],
            relations=(types.relations - ended["relation"]) | ours["relation"],
            schemas_commit=_derived_from(ledger),
        )
        return document if after == types and document else replace(after, updated_at=self._now()).document()

    def _dropped(self, ledger: Ledger, document: Document) -> Document:
        """Types that are dropped now; a type in a new life is not among them."""
        before = Dropped.parse(document, key=layout.DROPPED)
        types = {kind: dict(each) for kind, each in before.types.items()}
        for type_id, lives in ledger.lives.items():
            listed = types[type_id.kind]
            was, now = listed.get(type_id.name), (lives[-1].end, lives[-1].purged)
            if type_id not in _ended(ledger):
                listed.pop(type_id.name, None)
            elif was is None or (was.commit_id, was.purged) != now:
                listed[type_id.name] = DroppedType(*now, self._now())
        after = replace(before, entity=types["entity"], relation=types["relation"])
        return document if after == before and document else replace(after, updated_at=self._now()).document()

    def _registry(self, ledger: Ledger, documents: Mapping[TypeId, Stored], document: Document) -> Document:
        before = Registry.parse(document, key=layout.REGISTRY)
        schemas = {kind: dict(each) for kind, each in before.schemas.items()}
        for type_id in _ended(ledger):
            schemas[type_id.kind].pop(type_id.name, None)
        for type_id, stored in documents.items():
            schemas[type_id.kind][type_id.name] = plain_schema(stored.schema)
        after = replace(before, entity=schemas["entity"], relation=schemas["relation"])
        return document if after == before and document else replace(after, updated_at=self._now()).document()

    def _versions(self, type_id: TypeId, stored: Stored, document: Document) -> Document:
        before = Versions.parse(document, key=layout.versions_key(*type_id))
        others = [each for each in before.versions if each.schema_version_id != stored.ref.version_id]
        own = [each for each in before.versions if each.schema_version_id == stored.ref.version_id]
        if own and same_schema(own[0], stored):
            return document
        version = SchemaVersion.of(
            stored.ref.version_id,
            stored.schema,
            created_at=self._now(),
            runtime_id=self._runtime_id,
            reason=stored.reason,
        )
        version = replace(version, schema_hash=stored.ref.hash)
        listed = sorted((*others, version), key=lambda one: one.schema_version_id)
        return replace(before, kind=type_id.kind, type_name=type_id.name, versions=listed).document()

    def _now(self) -> str:
        return iso(self._ambient.clock.wall_ns())

    async def _edit(self, key: str, change: Callable[[Document], Document]) -> None:
        def changed(found: Object | None) -> Document | None:
            before = _readable(found)
            try:
                after = change(before)
            except Corrupt:
                after = change({})  # it is derived: one that cannot be read is rewritten
            return (
                None if found is not None and after == before else {**after, "write_id": self._ambient.ids.write_id()}
            )

        await edit(self._store, key, changed)
