"""Act 3: several writers commit to one history, and every past commit can be queried."""

import asyncio

from holdfast import Holdfast
from holdfast.cli.demo.stage import Stage
from holdfast.ontology import Entity, Field, meta

WRITERS = ("anna", "ben", "carla")
COMMITS = 3


class Machine(Entity):
    id: Field[str] = Field(primary_key=True)
    state: Field[str]


async def has_a_past(stage: Stage) -> None:
    stage.wait_for(f"{len(WRITERS)} writers commit")
    total, made = len(WRITERS) * COMMITS, list[int]()
    async with stage.open() as hf, hf.ontology(Machine) as onto:
        await asyncio.gather(*(write(hf, name, made) for name in WRITERS))
        made.sort()
        numbers = list(range(made[0], made[0] + total))
        stage.check(f"{len(WRITERS)} writers at once made {total} commits, one after the other", made == numbers, made)
        onto.ensure(Machine(id="anna-0", state="broken"))
        await onto.commit()
        onto.retract(Machine, "anna-0")
        await onto.commit()
        machines = onto.query(Machine)
        then = [await machines.as_of(commit).count() for commit in numbers]
        stage.check(f"as of each commit: {', '.join(map(str, then))} machines", then == [*range(1, total + 1)], then)
        now = await machines.count()
        stage.check(f"one broke and was retracted, so now: {now}", now == total - 1, now)
        past = await machines.where(Machine.id == "anna-0").with_history().all()
        states = ["retracted" if meta(each).retracted else each.state for each in past]
        stage.check(f"its history: {', '.join(states)}", states == ["new", "broken", "retracted"], states)


async def write(hf: Holdfast, name: str, made: list[int]) -> None:
    async with hf.ontology(Machine) as onto:
        for number in range(COMMITS):
            onto.ensure(Machine(id=f"{name}-{number}", state="new"))
            committed = await onto.commit()
            made += [] if committed is None else [committed.commit_id]
