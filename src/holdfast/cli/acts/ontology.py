"""Writers that commit to one head, entities and relations and events in one piece, and every past commit as it was."""

import asyncio

from holdfast.cli.acts.incidents import NAMESPACE, Concerns, Incident, IncidentOpened
from holdfast.cli.acts.stage import Stage, prove
from holdfast.cli.acts.telemetry import HOSTS
from holdfast.ontology import meta
from holdfast.platform.census import Host
from holdfast.platform.open import Holdfast

OPERATORS = 4
COMMITS = 3
TOTAL = OPERATORS * COMMITS


async def time_travel(stage: Stage) -> str:
    made: list[int] = []

    async def operate(hf: Holdfast, name: str) -> None:
        async with hf.ontology(Incident, Concerns, Host) as onto:
            for number in range(COMMITS):
                incident = f"{name}-{number}"
                onto.ensure(Incident(id=incident, state="open"))
                onto.ensure(Concerns(left_key=incident, right_key=HOSTS[number]))
                onto.emit(IncidentOpened(incident=incident), namespace=NAMESPACE)
                done = await onto.commit(metadata={"by": name})
                made.append(done.commit_id if done is not None else 0)
                stage.status = f"{len(made)} commits by {OPERATORS} operators"

    async with stage.open() as store:
        hf = Holdfast(store)
        async with hf.ontology(Incident, Concerns, Host) as onto:
            before = (await onto.info()).commit_id
            await asyncio.gather(*(operate(hf, f"operator-{number}") for number in range(OPERATORS)))
            prove(sorted(made) == list(range(before + 1, before + TOTAL + 1)), f"the commits made are {sorted(made)}")
            stage.tell(
                f"{OPERATORS} operators at once made commits {before + 1} to {before + TOTAL}, each with an event"
            )
            onto.ensure(Incident(id="operator-0-0", state="closed"))
            onto.retract(Concerns, "operator-0-0", HOSTS[0])
            await onto.commit()
            incidents, concerns = onto.query(Incident), onto.query(Concerns)
            then = [await concerns.as_of(commit).count() for commit in range(before, before + TOTAL + 1)]
            now = await incidents.where(Incident.state == "closed").count(), await concerns.count()
            first = await incidents.where(Incident.id == "operator-0-0").with_history().all()
    prove(then == list(range(TOTAL + 1)), f"as of each commit there were {then} relations")
    prove(now == (1, TOTAL - 1), f"one incident was closed and its relation retracted, and a query says {now}")
    states = [(one.state, meta(one).retracted) for one in first]
    prove(states == [("open", False), ("closed", False)], f"the history of an incident is {states}")
    return f"{TOTAL} commits by {OPERATORS} operators at once, none lost; all {TOTAL + 1} states are there, exactly"
