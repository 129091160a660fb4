"""One piece of upkeep that stops at one of its writes, so that a test can kill it there.

``python -m tests.integration.upkeep_victim URI WORK before|after PREFIX [FILE]``
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.ontology import Entity, Field, upgrader
from holdfast.ontology.bulk.decide import Policy
from holdfast.ontology.bulk.transfer import import_file
from holdfast.ontology.maintain import erase, migrate
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.typeinfo import TypeInfo, type_info


class Entry(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class Newer(Entity, name="Entry"):
    id: Field[str] = Field(primary_key=True)
    cents: Field[int]


@upgrader(Newer, from_version=1, to_version=2)
def in_cents(fields: dict[str, Any]) -> dict[str, Any]:
    return {"id": fields["id"], "cents": fields["value"] * 100}


FORMS: dict[Any, TypeInfo] = {type_info(Newer).type_id: type_info(Newer)}
CALM: dict[str, Any] = {"by": "victim", "why": "test"}


class Stopping(Layer):
    """Says ``here`` before or after the first write under a prefix, and does no more."""

    def __init__(self, inner: Store, when: str, prefix: str) -> None:
        super().__init__(inner)
        self._when, self._prefix = when, prefix

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        meant = key.startswith(self._prefix)
        done = await super().put(key, body, mode) if not meant or self._when == "after" else None
        if meant:
            print("here", flush=True)
            await asyncio.Event().wait()
        if done is None:
            raise RuntimeError("unreachable")
        return done


async def work(name: str, store: Store, ambient: Any, path: str) -> None:
    match name:
        case "import":
            async with Ontology(store, ambient, [Entry], Options(lease_ttl_ms=900)) as onto:
                await import_file(onto, Entry, Path(path), on_conflict=Policy.REPLACE)
        case "migrate":
            found = await migrate.preview(store, FORMS)
            await migrate.apply(store, ambient, found, found.token, **CALM)
        case "compact":
            await Compactor(store, ambient, fan=2).compact(type_info(Entry).type_id)
        case "erase":
            doomed = await erase.preview(store, "Entry", "k1")
            await erase.apply(store, ambient, doomed, doomed.token, **CALM)


async def main() -> None:
    uri, name, when, prefix, path = sys.argv[1:]
    async with holdfast.open(uri) as hf:
        await work(name, Stopping(hf.store, when, prefix), hf.ambient, path)


if __name__ == "__main__":
    asyncio.run(main())
