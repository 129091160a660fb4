"""Objects that were tampered with: every shape is either read past or refused as ours, and no row changes."""

import json
import random
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.ontology import Entity, Field
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology, Options
from tests.soak import SOAKING

ROUNDS = 120 if SOAKING else 30
ODD: tuple[Any, ...] = (None, 0, -1, 2**70, 1e400, True, [], {}, [[]], [{}], ["x"], [1.5])
ODD += ("", "../../outside", "/absolute", "meta/head.json", "a" * 2_000, "\ud800")


class Part(Entity):
    id: Field[str] = Field(primary_key=True)
    size: Field[int]


def session(shelf: Shelf) -> tuple[MemoryStore, Ontology]:
    ambient = Ambient.system()
    store = MemoryStore(shelf, clock=ambient.clock)
    return store, Ontology(store, ambient, [Part], Options(lock_timeout_ms=50))


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(place for name, each in inner for place in places(each, (*above, name)))]


def tampered(body: bytes, rng: random.Random) -> bytes:
    document = json.loads(body)
    place = rng.choice(places(document)[1:])
    inside = document
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = rng.choice(ODD)
    return json.dumps(document).encode()


async def test_what_was_tampered_with_is_refused_or_read_past() -> None:
    original = Shelf()
    store, onto = session(original)
    for number in range(5):
        onto.ensure(Part(id=f"p{number}", size=number))
        await onto.commit()
    await onto.flush()
    await onto.close()
    rng = random.Random(1)
    documents = [key for key in original.objects if key.endswith(".json")]
    refused = read = 0
    for _ in range(ROUNDS):
        shelf = Shelf()
        for each in original.objects.values():
            shelf.place(each)
        key = rng.choice(documents)
        store, onto = session(shelf)
        await store.put(key, tampered(original.objects[key].body, rng))
        try:
            rows = {part.id: part.size for part in await onto.all(Part)}
            if key != "meta/head.json":
                assert rows == {f"p{number}": number for number in range(5)}, key
            await onto.info()
            await verify(store)
            onto.ensure(Part(id="new", size=1))
            await onto.commit()
            await onto.flush()
            read += 1
        except HoldfastError:
            refused += 1
        onto.discard()
        await onto.close()
    assert min(read, refused) > 0
