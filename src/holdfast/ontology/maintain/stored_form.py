"""A type without its class: from the schema that the chain has. For commits that move rows as they are."""

from collections.abc import Sequence

import pyarrow as pa

from holdfast.base.codec import Document
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.intents import Row
from holdfast.ontology.maintain.merge import Target
from holdfast.ontology.types import names
from holdfast.ontology.types.refs import SchemaRef, TypeId
from holdfast.ontology.types.schema import Drift, diff


class StoredForm:
    def __init__(self, type_id: TypeId, ref: SchemaRef, schema: Document) -> None:
        self.type_id = type_id
        self.schema = schema
        self.schema_hash = ref.hash
        self._target = Target.of(type_id, ref.version_id, schema)

    @classmethod
    async def load(cls, chain: Chain, ledger: Ledger, type_id: TypeId) -> "StoredForm | None":
        """None for a type that only plain writers know."""
        ref = ledger.schemas.get(type_id)
        if ref is None:
            return None
        return cls(type_id, ref, (await catalog.chained_schema(chain, ledger, type_id, ref)).schema)

    def drift(self, stored: Document) -> Drift:
        return diff(stored, self.schema)

    def encode(self, written: Sequence[Row], commit_id: int, schema_version_id: int) -> bytes:
        """The rows as Parquet, in the columns of the specification and those of the schema. Blocking."""
        ordered = sorted(written)
        count, kind = len(ordered), self.type_id.kind
        columns: dict[str, pa.Array] = {
            "commit_id": pa.repeat(pa.scalar(commit_id, pa.int64()), count),
            f"{kind}_type": pa.repeat(pa.scalar(self.type_id.name, pa.string()), count),
        }
        for place, name in enumerate(names.key_columns(kind)):
            columns[name] = pa.array([row.identity[place] for row in ordered], pa.string())
        columns["schema_version_id"] = pa.repeat(pa.scalar(schema_version_id, pa.int64()), count)
        bodies = [row.fields_json for row in ordered]
        columns["fields_json"] = pa.array(bodies, pa.string())
        typed = typed_columns(self._target.nodes, bodies)
        columns |= {name: made.array for name, made in typed.items()}
        if any(row.retracted for row in ordered):
            columns[names.RETRACTED] = pa.array([row.retracted for row in ordered], pa.bool_())
        marks = rows.marks(self._target.nodes, [name for name, made in typed.items() if made.partial])
        return rows.to_parquet(pa.table(columns).replace_schema_metadata(marks))
