"""A process that reads a type again and again, in several ways, until its input ends; each answer is one line."""

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

import holdfast
from holdfast.base.errors import NotFound
from holdfast.ontology import Entity, Field
from holdfast.ontology.feed import Feed
from holdfast.ontology.query.results import meta
from holdfast.ontology.query.sqltables import SqlTables


class Guest(Entity):
    id: Field[str] = Field(primary_key=True)
    round: Field[int]


async def answers(hf: Any) -> dict[str, Any]:
    """The rounds of all guests, at the head and in its history."""
    async with hf.ontology(Guest) as onto:
        found = {"latest": sorted({one.round for one in await onto.query(Guest).all()})}
        found["count"] = [await onto.query(Guest).count()]
    async with hf.ontology(Guest) as onto:
        rows = await onto.query(Guest).with_history().all()
        found["history"] = sorted({(meta(one).commit_id, one.round or 0, meta(one).erased) for one in rows})
        found["streamed"] = sorted({one.round async for one in onto.query(Guest).stream()})
    current: dict[str, int] = {}
    async for change in Feed(hf.store):
        if change.change_type == "retract":
            current.pop(change.identity[0], None)
        elif change.change_type != "update_preimage":
            current[change.identity[0]] = change.fields["round"]
    found["fed"] = sorted(set(current.values()))
    async with SqlTables(hf.store) as tables:
        found["sql"] = []
        with suppress(NotFound):  # there is none yet, or none any more
            found["sql"] = sorted({row["round"] for row in (await tables.run("SELECT * FROM Guest")).to_pylist()})
    return found


async def main(uri: str) -> None:
    async with holdfast.open(uri) as hf:
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        while not ended.done():
            sys.stdout.write(json.dumps(await answers(hf)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
