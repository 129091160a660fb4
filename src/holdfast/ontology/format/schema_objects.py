"""The schema objects of the specification as documents: types, registry, versions, dropped. Pure.

Unknown fields are kept when a document is rewritten, at every level.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator

from holdfast.base.codec import Document
from holdfast.base.record import Record
from holdfast.ontology.types.refs import Kind
from holdfast.ontology.types.schema import schema_hash, schema_json

Names = Annotated[frozenset[str], PlainSerializer(sorted)]


@dataclass(frozen=True)
class Types(Record):
    """``meta/schema/types.json``: the names of all types."""

    WHAT = "a list of types"
    entities: Names = frozenset()
    relations: Names = frozenset()
    updated_at: str = ""
    schemas_commit: Annotated[Any, Field(exclude_if=lambda value: value is None)] = None
    """Our field: the commit up to which the schema objects were derived from the chain."""


@dataclass(frozen=True)
class Registry(Record):
    """``meta/schema/registry.json``: the latest schema of each type."""

    WHAT = "a registry of schemas"
    entity: Mapping[str, Document] = field(default_factory=dict)
    relation: Mapping[str, Document] = field(default_factory=dict)
    updated_at: str = ""

    @property
    def schemas(self) -> Mapping[Kind, Mapping[str, Document]]:
        return {"entity": self.entity, "relation": self.relation}


def _part(kind: type[Record]) -> tuple[PlainValidator, PlainSerializer]:
    """A record within another: it keeps its own unknown fields."""

    def read(value: Any) -> Record:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise ValueError("not an object")
        return kind.parse(value, key="an object below meta/schema")

    return PlainValidator(read), PlainSerializer(lambda record: record.document())


@dataclass(frozen=True)
class SchemaVersion(Record):
    WHAT = "a version of a schema, they count from 1"
    schema_version_id: Annotated[int, Field(ge=1)]
    schema_json: str = ""
    schema_hash: str = ""
    created_at: str | None = ""
    runtime_id: str | None = ""
    reason: str | None = ""

    @classmethod
    def of(cls, number: int, schema: Document, *, created_at: str, runtime_id: str, reason: str = "") -> Self:
        return cls(number, schema_json(schema), schema_hash(schema), created_at, runtime_id, reason)


def _in_order(listed: list[SchemaVersion]) -> list[SchemaVersion]:
    return sorted(listed, key=lambda version: version.schema_version_id)


@dataclass(frozen=True)
class Versions(Record):
    """``meta/schema/versions/{kind}/{Type}.json``: all schemas of a type, oldest first."""

    WHAT = "a list of schema versions"
    kind: Annotated[str, Field(alias="type_kind")] = ""
    type_name: str = ""
    versions: Annotated[list[Annotated[SchemaVersion, *_part(SchemaVersion)]], AfterValidator(_in_order)] = field(
        default_factory=list
    )

    @property
    def latest(self) -> SchemaVersion | None:
        return self.versions[-1] if self.versions else None


@dataclass(frozen=True)
class DroppedType(Record):
    WHAT = "a record of a dropped type"
    commit_id: int
    purged: bool = False
    updated_at: str = ""


DroppedByName = Mapping[str, Annotated[DroppedType, *_part(DroppedType)]]


@dataclass(frozen=True)
class Dropped(Record):
    """``meta/schema/dropped.json``: dropped types, the commits that dropped them, and whether they were purged."""

    WHAT = "a list of dropped types"
    entity: DroppedByName = field(default_factory=dict)
    relation: DroppedByName = field(default_factory=dict)
    updated_at: str = ""

    @property
    def types(self) -> Mapping[Kind, Mapping[str, DroppedType]]:
        return {"entity": self.entity, "relation": self.relation}
