"""The schema objects of the specification as documents: types, registry, versions, dropped. Pure.

Fields that we do not know are kept when a document is rewritten, at every level.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.ontology.types.refs import KINDS, Kind
from holdfast.ontology.types.schema import schema_hash, schema_json


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
