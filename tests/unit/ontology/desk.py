"""A store with its meter running, and committers on it that need no classes."""

import json
import random
from collections.abc import Callable
from typing import Any

from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Store
from holdfast.ontology.commit.commit import Committer
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.batch import Expectation, Intent
from holdfast.ontology.format.head import Head
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema
from tests.unit.ontology.plain import PlainReader, PlainWriter

CUSTOMER = TypeId("entity", "Customer")
PRODUCT = TypeId("entity", "Product")
OWNS = TypeId("relation", "Owns")


def stored_type(type_id: TypeId, *fields: str) -> TypeInfo:
    """A type without a class, with these fields; rows may have others."""
    described = {name: {"index": False, "type": "<class 'str'>"} for name in fields}
    return of_schema(type_id, {f"{type_id.kind}_name": type_id.name, "fields": described})


TYPES = {each: stored_type(each) for each in (CUSTOMER, PRODUCT, OWNS)}


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
        self.wrapped: Any = wrap(self.bare) if wrap is not None else self.bare
        retry = RetryPolicy(attempts=4, base_ms=0, max_ms=0)
        self.store = Client(self.wrapped, ambient=self.ambient, retry=retry, usage=self.usage)
        self.reader = PlainReader(self.bare)
        self.plain = PlainWriter(self.bare)
        self.writers = 0

    def committer(self, kind: type[Committer] = Committer, **options: Any) -> Committer:
        self.writers += 1
        options.setdefault("runtime_id", f"writer{self.writers}")
        types = options.pop("types", TYPES)
        return kind(self.store, self.ambient, View(self.store), types, **options)

    def session(self, *types: type[Mixin], **options: Any) -> Ontology:
        return Ontology(self.store, self.ambient, types, Options(**options))

    def spent(self) -> dict[str, int]:
        total = {verb: count for verb, count in self.usage.by_verb.items() if count}
        self.usage.tallies.clear()
        return total


async def begin_anew(desk: Desk) -> None:
    """An empty head and nothing derived: a store that was emptied but for its commits."""
    for prefix in ("meta/indices/", "snapshots/", "meta/schema/", "meta/checkpoints/", "meta/tags"):
        for key in [key for key in desk.shelf.objects if key.startswith(prefix)]:
            await desk.bare.delete(key)
    await desk.bare.put(layout.HEAD, Head(updated_at="", runtime_id="operator").body("anew"), OVERWRITE)


async def put(committer: Committer, *pairs: tuple[str, Any], type_id: TypeId = CUSTOMER, **options: Any) -> Any:
    committer.queue += [intent(key, value, type_id) for key, value in pairs]
    return await committer.commit(**options)
