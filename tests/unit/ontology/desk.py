"""A store with its meter running, and committers on it that need no classes."""

import io
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Store
from holdfast.ontology.commit.commit import Committer
from holdfast.ontology.commit.view import View
from holdfast.ontology.format.data.intents import Expectation, Intent, Row
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import Drift, diff
from tests.unit.ontology.plain import PlainReader, PlainWriter

CUSTOMER = TypeId("entity", "Customer")
PRODUCT = TypeId("entity", "Product")
OWNS = TypeId("relation", "Owns")


class Form:
    """A type without a class: whatever fields it is given."""

    def __init__(self, type_id: TypeId, *fields: str) -> None:
        self.type_id = type_id
        described = {name: {"index": False, "type": "<class 'str'>"} for name in fields}
        self.schema: dict[str, Any] = {f"{type_id.kind}_name": type_id.name, "fields": described}
        self.schema_hash = "-".join(("h", *fields))

    def drift(self, stored: dict[str, Any]) -> Drift:
        return diff(stored, self.schema)

    def encode(self, rows: Sequence[Row], commit_id: int, schema_version_id: int) -> bytes:
        count = len(rows)
        columns: dict[str, Any] = {
            "commit_id": pa.array([commit_id] * count, pa.int64()),
            f"{self.type_id.kind}_type": [self.type_id.name] * count,
        }
        names = ("entity_key",) if self.type_id.kind == "entity" else ("left_key", "right_key", "instance_key")
        for place, name in enumerate(names):
            columns[name] = [row.identity[place] for row in rows]
        columns["schema_version_id"] = pa.array([schema_version_id] * count, pa.int64())
        columns["fields_json"] = [row.fields_json for row in rows]
        columns["_retracted"] = [row.retracted for row in rows]
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        return sink.getvalue()


FORMS = {each: Form(each) for each in (CUSTOMER, PRODUCT, OWNS)}


def intent(key: str, value: Any, type_id: TypeId = CUSTOMER, expect: Expectation | None = None) -> Intent:
    identity = tuple(key.split("|")) if type_id.kind == "relation" else (key,)
    fields = None if value is None else json.dumps({"v": value}, sort_keys=True, separators=(",", ":"))
    return Intent(type_id, identity, fields, expect)


class Desk:
    def __init__(self, *, seed: int = 5, wrap: Callable[[Store], Store] | None = None) -> None:
        self.shelf = Shelf()
        self.bare = MemoryStore(self.shelf)
        self.usage = Usage()
        self.ambient = Ambient(SystemClock(), random.Random(seed))
        backend: Store = wrap(self.bare) if wrap is not None else self.bare
        retry = RetryPolicy(attempts=4, base_ms=0, max_ms=0)
        self.store = Client(backend, ambient=self.ambient, retry=retry, usage=self.usage)
        self.reader = PlainReader(self.bare)
        self.plain = PlainWriter(self.bare)
        self.writers = 0

    def committer(self, kind: type[Committer] = Committer, **options: Any) -> Committer:
        self.writers += 1
        options.setdefault("runtime_id", f"writer{self.writers}")
        forms = options.pop("forms", FORMS)
        return kind(self.store, self.ambient, View(self.store), forms, **options)

    def spent(self) -> dict[str, int]:
        total = {verb: count for verb, count in self.usage.by_verb.items() if count}
        self.usage.tallies.clear()
        return total


async def put(committer: Committer, *pairs: tuple[str, Any], type_id: TypeId = CUSTOMER, **options: Any) -> Any:
    committer.queue += [intent(key, value, type_id) for key, value in pairs]
    return await committer.commit(**options)
