"""Writers that commit to one head, and every past commit as it was."""

import asyncio

from holdfast.cli.acts.stage import Stage, prove
from holdfast.ontology import Entity, Field
from holdfast.platform.open import Holdfast

WRITERS = 4
COMMITS = 5


class Parcel(Entity):
    id: Field[str] = Field(primary_key=True)
    place: Field[str] = Field()


async def time_travel(stage: Stage) -> str:
    made = 0

    async def write(hf: Holdfast, name: str) -> None:
        nonlocal made
        async with hf.ontology(Parcel) as onto:
            for number in range(COMMITS):
                onto.ensure(Parcel(id=f"{name}-{number}", place="depot"))
                await onto.commit(metadata={"by": name})
                made += 1
                stage.status = f"{made} commits by {WRITERS} writers"

    async with stage.open() as store:
        hf = Holdfast(store)
        await asyncio.gather(*(write(hf, f"writer{number}") for number in range(WRITERS)))
        total = WRITERS * COMMITS
        async with hf.ontology(Parcel) as onto:
            onto.ensure(Parcel(id="writer0-0", place="delivered"))
            onto.retract(Parcel, "writer0-1")
            head = await onto.commit()
            parcels = onto.query(Parcel)
            now = await parcels.where(Parcel.place == "delivered").count(), await parcels.count()
            then = [await parcels.as_of(commit).count() for commit in range(total + 1)]
    prove(head is not None and head.commit_id == total + 1, f"{total + 1} commits were made, the head says {head}")
    prove(then == list(range(total + 1)), f"as of each commit there were {then} parcels")
    prove(now == (1, total - 1), f"one is delivered and one retracted, and a query says {now}")
    return f"{total} commits by {WRITERS} writers at once, none lost; all {total + 1} states are still there, exactly"
