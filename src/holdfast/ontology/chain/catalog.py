"""The schema objects of the specification: types, registry, versions, dropped.

They are derived from the chain, for plain readers; the manifests' schema map decides. They are written after the commit
that changed it, each if-match on what was read, so that the entries of other writers stay; fields that we do not know
are kept, at every level. The names come last, with the commit up to which all of it was derived (``schemas_commit``):
so the next session sees in one read what a crash has left out.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeVar

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Corrupt, HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, IfMatch, Object, Store, Written
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.types.refs import KINDS, Kind, SchemaRef, TypeId
from holdfast.ontology.types.schema import schema_hash, schema_json
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema


def _rest(document: Mapping[str, Any], *known: str) -> Document:
    return {name: value for name, value in document.items() if name not in known}


Part = TypeVar("Part")


def _by_kind(document: Mapping[str, Any], key: str, parse: Callable[[Any, str], Part]) -> dict[Kind, dict[str, Part]]:
    """``{kind: {Type: part}}``, with each part parsed."""
    return {
        kind: {str(name): parse(part, f"{key}: {name}") for name, part in _take(document, kind, dict, {}, key).items()}
        for kind in KINDS
    }


def _composed(
    parts: Mapping[Kind, Mapping[str, Part]], compose: Callable[[Part], Document], updated_at: str, extra: Document
) -> Document:
    """The other way."""
    listed: Document = {kind: {name: compose(part) for name, part in parts.get(kind, {}).items()} for kind in KINDS}
    return {**extra, **listed, "updated_at": updated_at}


def _take(document: Mapping[str, Any], name: str, kind: type, default: Any, key: str) -> Any:
    value = document.get(name, default)
    if not isinstance(value, kind):
        raise Corrupt(f"{key}: {name} is {value!r}")
    return value


@dataclass(frozen=True)
class Types:
    """``meta/schema/types.json``: the names of all types."""

    entities: frozenset[str] = frozenset()
    relations: frozenset[str] = frozenset()
    updated_at: str = ""
    extra: Document = field(default_factory=dict)

    @classmethod
    def parse(cls, document: Document, *, key: str) -> Self:
        entities, relations = (
            frozenset(map(str, _take(document, name, list, [], key))) for name in ("entities", "relations")
        )
        rest = _rest(document, "entities", "relations", "updated_at")
        return cls(entities, relations, str(document.get("updated_at", "")), rest)

    def compose(self) -> Document:
        return {
            **self.extra,
            "entities": sorted(self.entities),
            "relations": sorted(self.relations),
            "updated_at": self.updated_at,
        }


@dataclass(frozen=True)
class Registry:
    """``meta/schema/registry.json``: the latest schema of each type."""

    schemas: Mapping[Kind, Mapping[str, Document]] = field(default_factory=dict)
    updated_at: str = ""
    extra: Document = field(default_factory=dict)

    @classmethod
    def parse(cls, document: Document, *, key: str) -> Self:
        schemas = _by_kind(document, key, lambda schema, _: schema)
        return cls(schemas, str(document.get("updated_at", "")), _rest(document, *KINDS, "updated_at"))

    def compose(self) -> Document:
        return _composed(self.schemas, lambda schema: schema, self.updated_at, self.extra)


@dataclass(frozen=True)
class SchemaVersion:
    schema_version_id: int
    schema_json: str
    schema_hash: str
    created_at: str
    runtime_id: str
    reason: str = ""
    extra: Document = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, schema: Document, *, created_at: str, runtime_id: str, reason: str = "") -> Self:
        return cls(number, schema_json(schema), schema_hash(schema), created_at, runtime_id, reason)

    @classmethod
    def parse(cls, document: Any, *, key: str) -> Self:
        number = document.get("schema_version_id") if isinstance(document, Mapping) else None
        if not isinstance(number, int) or number < 1:
            raise Corrupt(f"{key}: a version has the number {number!r}; they count from 1")
        texts = {name: str(document.get(name, "")) for name in _VERSION_TEXTS}
        return cls(number, **texts, extra=_rest(document, "schema_version_id", *_VERSION_TEXTS))

    def compose(self) -> Document:
        texts = {name: getattr(self, name) for name in _VERSION_TEXTS}
        return {**self.extra, "schema_version_id": self.schema_version_id, **texts}


_VERSION_TEXTS = ("schema_json", "schema_hash", "created_at", "runtime_id", "reason")


@dataclass(frozen=True)
class Versions:
    """``meta/schema/versions/{kind}/{Type}.json``: every schema that a type ever had, oldest first."""

    kind: str
    type_name: str
    versions: tuple[SchemaVersion, ...] = ()
    extra: Document = field(default_factory=dict)

    @property
    def latest(self) -> SchemaVersion | None:
        return self.versions[-1] if self.versions else None

    @classmethod
    def parse(cls, document: Document, *, key: str) -> Self:
        listed = [SchemaVersion.parse(each, key=key) for each in _take(document, "versions", list, [], key)]
        listed.sort(key=lambda version: version.schema_version_id)
        rest = _rest(document, "type_kind", "type_name", "versions")
        return cls(str(document.get("type_kind", "")), str(document.get("type_name", "")), tuple(listed), rest)

    def compose(self) -> Document:
        listed = [version.compose() for version in self.versions]
        return {**self.extra, "type_kind": self.kind, "type_name": self.type_name, "versions": listed}


@dataclass(frozen=True)
class DroppedType:
    commit_id: int
    purged: bool
    updated_at: str
    extra: Document = field(default_factory=dict)

    @classmethod
    def parse(cls, document: Any, key: str) -> Self:
        commit_id = document.get("commit_id") if isinstance(document, Mapping) else None
        if not isinstance(commit_id, int):
            raise Corrupt(f"{key}: commit_id is {commit_id!r}")
        rest = _rest(document, "commit_id", "purged", "updated_at")
        return cls(commit_id, bool(document.get("purged")), str(document.get("updated_at", "")), rest)

    def compose(self) -> Document:
        known = {"commit_id": self.commit_id, "purged": self.purged, "updated_at": self.updated_at}
        return {**self.extra, **known}


@dataclass(frozen=True)
class Dropped:
    """``meta/schema/dropped.json``: types that are gone, since which commit, and whether their rows are."""

    types: Mapping[Kind, Mapping[str, DroppedType]] = field(default_factory=dict)
    updated_at: str = ""
    extra: Document = field(default_factory=dict)

    @classmethod
    def parse(cls, document: Document, *, key: str) -> Self:
        types = _by_kind(document, key, DroppedType.parse)
        return cls(types, str(document.get("updated_at", "")), _rest(document, *KINDS, "updated_at"))

    def compose(self) -> Document:
        return _composed(self.types, DroppedType.compose, self.updated_at, self.extra)


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
    place = await chain.at(ledger.place, ref.since)
    manifest = await chain.manifest(place) if place is not None else None
    for each in manifest.registered if manifest is not None else ():
        if each.type_id == type_id:
            return Stored(each.ref, each.schema, each.reason or "register")
    raise Corrupt(f"{type_id.label}: commit {ref.since} should have registered its schema, and has not")


async def chained_type(chain: Chain, ledger: Ledger, type_id: TypeId) -> TypeInfo | None:
    """A type by the schema that the chain has; None for one that only plain writers know."""
    ref = ledger.schemas.get(type_id)
    if ref is None:
        return None
    return of_schema(type_id, (await chained_schema(chain, ledger, type_id, ref)).schema, version_id=ref.version_id)


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

    async def sync(self, chain: Chain, ledger: Ledger) -> None:
        """Make the derived objects say what the ledger says."""
        found = await self._store.find(layout.TYPES)
        noted = _readable(found).get(DERIVED, 0)
        derived = noted if isinstance(noted, int) else 0
        behind = {each: ref for each, ref in ledger.schemas.items() if ref.since > derived}
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
            extra={**types.extra, DERIVED: _derived_from(ledger)},
        )
        return document if after == types and document else replace(after, updated_at=self._now()).compose()

    def _dropped(self, ledger: Ledger, document: Document) -> Document:
        """Types that are gone now; one that has begun a new life is not."""
        known = Dropped.parse(document, key=layout.DROPPED)
        types = {kind: dict(known.types.get(kind, {})) for kind in KINDS}
        for type_id, lives in ledger.lives.items():
            listed = types[type_id.kind]
            was, now = listed.get(type_id.name), (lives[-1].end, lives[-1].purged)
            if type_id not in _gone(ledger):
                listed.pop(type_id.name, None)
            elif was is None or (was.commit_id, was.purged) != now:
                listed[type_id.name] = DroppedType(*now, self._now())
        after = replace(known, types=types)
        return document if after == known and document else replace(after, updated_at=self._now()).compose()

    def _registry(self, ledger: Ledger, documents: Mapping[TypeId, Stored], document: Document) -> Document:
        registry = Registry.parse(document, key=layout.REGISTRY)
        schemas = {kind: dict(registry.schemas.get(kind, {})) for kind in KINDS}
        for type_id in _gone(ledger):
            schemas[type_id.kind].pop(type_id.name, None)
        for type_id, stored in documents.items():
            schemas[type_id.kind][type_id.name] = stored.schema
        after = replace(registry, schemas=schemas)
        return document if after == registry and document else replace(after, updated_at=self._now()).compose()

    def _versions(self, type_id: TypeId, stored: Stored, document: Document) -> Document:
        known = Versions.parse(document, key=layout.versions_key(*type_id))
        if any(version.schema_version_id == stored.ref.version_id for version in known.versions):
            return document
        version = SchemaVersion.of(
            stored.ref.version_id,
            stored.schema,
            created_at=self._now(),
            runtime_id=self._runtime_id,
            reason=stored.reason,
        )
        version = replace(version, schema_hash=stored.ref.hash)
        listed = sorted((*known.versions, version), key=lambda one: one.schema_version_id)
        return replace(known, kind=type_id.kind, type_name=type_id.name, versions=tuple(listed)).compose()

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
                after = change({})  # it is derived: what nobody can read is written anew
            if found is not None and after == before:
                return
            body = codec.encode({**after, "write_id": self._ambient.ids.write_id()})
            mode = CREATE if found is None else IfMatch(found.version)
            if isinstance(await self._store.put(key, body, mode), Written):
                return
        raise Conflict(f"{key}: others keep writing it")
