"""The schema objects of the specification, read and kept up to date.

For our commits they are derived from the chain, for plain readers; the manifests' schema map decides. They are written
after the commit that changed it, each if-match on what was read, so that the entries of other writers stay. The names
come last, with the commit up to which all of it was derived (``schemas_commit``): so the next session sees in one read
what a crash has left out. A plain writer writes here what it registers, migrates or drops: see ``format.chainstate``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Corrupt, HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, IfMatch, Object, Store, Written
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.schema_objects import Dropped, DroppedType, Registry, SchemaVersion, Types, Versions
from holdfast.ontology.types.errors import SchemaPending
from holdfast.ontology.types.refs import KINDS, SchemaRef, TypeId
from holdfast.ontology.types.schema import diff, plain_schema
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema

TRIES = 8
DERIVED = "schemas_commit"


@dataclass(frozen=True, slots=True)
class Stored:
    """A schema that was registered in the way of the specification."""

    ref: SchemaRef
    schema: Document
    reason: str = "register"


async def stored_schema(store: Store, type_id: TypeId) -> Stored | None:
    """The latest version that was registered in the way of the specification; None if there is none to be read."""
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
    raise Corrupt(f"{type_id.label}: commit {ref.since} should have registered its schema, and has not")


async def migrated_schema(store: Store, type_id: TypeId, ref: SchemaRef) -> Stored:
    """The schema that a plain writer's commit has introduced. ``SchemaPending`` if it is not written yet."""
    latest = await stored_schema(store, type_id)
    if latest is None or latest.ref.version_id < ref.version_id:
        raise SchemaPending(
            f"{type_id.label}: commit {ref.since} has rows of version {ref.version_id}, and "
            f"{layout.versions_key(*type_id)} does not list it",
            remedy="another program writes it after its commit: try again; if it has crashed, run its migration again",
        )
    return latest


async def schema_at(chain: Chain, ledger: Ledger, type_id: TypeId) -> Stored | None:
    """The schema that a type has at a ledger; where the chain has none, what a plain writer registered, if any."""
    ref = ledger.schemas.get(type_id)
    if ref is None:
        return await stored_schema(chain.store, type_id)
    return await chained_schema(chain, ledger, type_id, ref)


async def chained_type(chain: Chain, ledger: Ledger, type_id: TypeId) -> TypeInfo | None:
    """A type by the schema that the chain has; None for one that only plain writers know."""
    ref = ledger.schemas.get(type_id)
    if ref is None:
        return None
    return of_schema(type_id, (await chained_schema(chain, ledger, type_id, ref)).schema, version_id=ref.version_id)


def alike(listed: SchemaVersion, stored: Stored) -> bool:
    """Whether a version that is listed is the schema of the chain, perhaps in the spelling of another program."""
    try:
        return listed.schema_hash == stored.ref.hash or not diff(json.loads(listed.schema_json), stored.schema)
    except (ValueError, AttributeError):
        return False


def _gone(ledger: Ledger) -> set[TypeId]:
    """Types whose last life has ended."""
    return {each for each in ledger.lives if each not in ledger.schemas and each not in ledger.heads}


def _derived_from(ledger: Ledger) -> int:
    """The last commit that changed a schema, or ended a type."""
    ends = (lives[-1].end for lives in ledger.lives.values())
    return max((*(ref.since for ref in ledger.schemas.values()), *ends), default=0)


def _readable(found: Object | None) -> Document:
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
        """Bring the derived objects up to the ledger; with ``repair`` rewrite them in any case."""
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
        gone = {kind: {each.name for each in _gone(ledger) if each.kind == kind} for kind in KINDS}
        after = replace(
            types,
            entities=(types.entities - gone["entity"]) | ours["entity"],
            relations=(types.relations - gone["relation"]) | ours["relation"],
            schemas_commit=_derived_from(ledger),
        )
        return document if after == types and document else replace(after, updated_at=self._now()).document()

    def _dropped(self, ledger: Ledger, document: Document) -> Document:
        """Types that are dropped now; a type in a new life is not among them."""
        known = Dropped.parse(document, key=layout.DROPPED)
        types = {kind: dict(each) for kind, each in known.types.items()}
        for type_id, lives in ledger.lives.items():
            listed = types[type_id.kind]
            was, now = listed.get(type_id.name), (lives[-1].end, lives[-1].purged)
            if type_id not in _gone(ledger):
                listed.pop(type_id.name, None)
            elif was is None or (was.commit_id, was.purged) != now:
                listed[type_id.name] = DroppedType(*now, self._now())
        after = replace(known, entity=types["entity"], relation=types["relation"])
        return document if after == known and document else replace(after, updated_at=self._now()).document()

    def _registry(self, ledger: Ledger, documents: Mapping[TypeId, Stored], document: Document) -> Document:
        registry = Registry.parse(document, key=layout.REGISTRY)
        schemas = {kind: dict(each) for kind, each in registry.schemas.items()}
        for type_id in _gone(ledger):
            schemas[type_id.kind].pop(type_id.name, None)
        for type_id, stored in documents.items():
            schemas[type_id.kind][type_id.name] = plain_schema(stored.schema)
        after = replace(registry, entity=schemas["entity"], relation=schemas["relation"])
        return document if after == registry and document else replace(after, updated_at=self._now()).document()

    def _versions(self, type_id: TypeId, stored: Stored, document: Document) -> Document:
        known = Versions.parse(document, key=layout.versions_key(*type_id))
        listed = [version for version in known.versions if version.schema_version_id == stored.ref.version_id]
        if listed and alike(listed[0], stored):
            return document
        version = SchemaVersion.of(
            stored.ref.version_id,
            stored.schema,
            created_at=self._now(),
            runtime_id=self._runtime_id,
            reason=stored.reason,
        )
        version = replace(version, schema_hash=stored.ref.hash)
        others = [each for each in known.versions if each.schema_version_id != stored.ref.version_id]
        listed = sorted((*others, version), key=lambda one: one.schema_version_id)
        return replace(known, kind=type_id.kind, type_name=type_id.name, versions=listed).document()

    def _now(self) -> str:
        return iso(self._ambient.clock.wall_ns())

    async def _edit(self, key: str, change: Callable[[Document], Document]) -> None:
        """Read, change, write if-match on what was read; nothing if nothing changes."""
        for _ in range(TRIES):
            found = await self._store.find(key)
            before = _readable(found)
            try:
                after = change(before)
            except Corrupt:
                after = change({})  # it is derived: one that cannot be read is written anew
            if found is not None and after == before:
                return
            body = codec.encode({**after, "write_id": self._ambient.ids.write_id()})
            mode = CREATE if found is None else IfMatch(found.version)
            if isinstance(await self._store.put(key, body, mode), Written):
                return
        raise Conflict(f"{key}: others keep writing it")
