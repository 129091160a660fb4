"""The audit of runs, of events and of the ontology: spans of their keys, each looked at by its own room."""

from collections.abc import AsyncIterator
from dataclasses import replace

from holdfast.base.aio import map_bounded
from holdfast.base.audit import Finding, Rule, Severity, Tally
from holdfast.bus import layout as bus
from holdfast.bus.audit import NamespaceCheck
from holdfast.objects.store import Entry, Store
from holdfast.ontology.format import layout as ontology
from holdfast.ontology.maintain.verify.findings import Finding as Told
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.pipeline.audit_desk import AT_ONCE, Desk
from holdfast.pipeline.audit_spans import Span, divided, entries, past
from holdfast.runs import layout as runs
from holdfast.runs.admin.audit import Folder, RunCheck

RUNS, RUN_INDEX = "runs", "runs-index"
EVENTS, CLAIMS, LETTERS, KNOWLEDGE = "events", "claims", "dead letters", "knowledge of events"
OF_BUS = (EVENTS, CLAIMS, LETTERS, KNOWLEDGE)
ONTOLOGY = "ontology"
RUNS_AT_ONCE = 64


# --- runs ---


async def run_spans(store: Store, most: int) -> list[Span]:
    return [
        *await divided(store, RUNS, runs.ROOT, most),
        *await divided(store, RUN_INDEX, runs.INDEX_OPEN, most),
        *await divided(store, RUN_INDEX, runs.INDEX_DONE, most),
    ]


async def walk_runs(desk: Desk, span: Span) -> Span | None:
    check = RunCheck(desk.store, desk.look)
    if span.space == RUN_INDEX:
        return await desk.walk(span, check.indexed)
    group: list[Folder] = []
    async for run_id, found in _folders(desk, span):
        group.append(Folder.of(run_id, found))
        desk.room -= len(found)
        if len(group) >= RUNS_AT_ONCE or desk.room <= 0:
            await _look(desk, check, group)
            group = []
        if desk.room <= 0:
            return replace(span, after=past(runs.run_folder(run_id)))
    await _look(desk, check, group)
    return None


async def _look(desk: Desk, check: RunCheck, group: list[Folder]) -> None:
    async def one(folder: Folder) -> None:
        given: Folder | None = folder

        async def run(tally: Tally) -> None:
            nonlocal given
            if given is None:  # the second look is at what is there now
                prefix = runs.run_folder(folder.run_id)
                now = [entry async for page in desk.store.list(prefix) for entry in page.entries]
                given = Folder.of(folder.run_id, now)
            current, given = given, None
            await check.run(current, tally)

        await desk.sure(run)

    await map_bounded(group, one, limit=AT_ONCE)


async def _folders(desk: Desk, span: Span) -> AsyncIterator[tuple[str, list[Entry]]]:
    """The objects of each run, one after the other."""
    run_id, found = "", list[Entry]()
    async for page in entries(desk.store, span):
        for entry in page:
            own = entry.key.removeprefix(runs.ROOT).partition("/")[0]
            if own != run_id:
                if found:
                    yield run_id, found
                run_id, found = own, []
            found.append(entry)
    if found:
        yield run_id, found


# --- events ---


async def bus_spans(store: Store, most: int) -> list[Span]:
    namespaces: set[str] = set()
    for prefix in (bus.EVENTS, bus.CLAIMS, bus.DEAD_LETTERS, bus.BUS):
        async for page in store.list(prefix, delimiter=True):
            namespaces |= {folder.removeprefix(prefix).rstrip("/") for folder in page.folders}
    found: list[Span] = []
    for namespace in sorted(namespaces):
        found.append(Span(KNOWLEDGE, f"{bus.BUS}{namespace}/"))
        found += await divided(store, EVENTS, f"{bus.EVENTS}{namespace}/", most)
        found += await divided(store, CLAIMS, f"{bus.CLAIMS}{namespace}/", most)
        found += await divided(store, LETTERS, f"{bus.DEAD_LETTERS}{namespace}/", most)
    return found


async def walk_bus(desk: Desk, span: Span) -> Span | None:
    namespace = span.prefix.split("/")[1]
    check = await NamespaceCheck.of(desk.store, desk.look, namespace)
    if span.space == KNOWLEDGE:
        await desk.sure(check.knowledge)
        return None
    looks = {EVENTS: check.event, CLAIMS: check.claim, LETTERS: check.letter}
    return await desk.walk(span, looks[span.space])


# --- ontology ---


async def ontology_spans(store: Store, most: int) -> list[Span]:
    if await store.find(ontology.HEAD) is not None:
        return [Span(ONTOLOGY, "")]
    for prefix in (ontology.COMMITS, ontology.LOADS):  # a head that was lost, a first load that was killed
        async for page in store.list(prefix, delimiter=True):
            if page.folders or page.entries:
                return [Span(ONTOLOGY, "")]
            break
    return []


async def walk_ontology(desk: Desk, span: Span) -> Span | None:
    """All of it at once: the chain is the judge, and it is one. Committers may be at work: what is wrong stays so."""

    async def one(tally: Tally) -> None:
        report = await verify(desk.store, deep=desk.look.deep)
        tally.checked.update({f"ontology {name}": count for name, count in report.checked.items()})
        tally.findings += [_finding(each) for each in report.findings]

    await desk.sure(one)
    return None


def _finding(told: Told) -> Finding:
    severity = Severity(told.severity.value)
    return Finding(Rule(f"ontology_{told.kind}", severity, told.kind, told.remedy), told.key, told.message)
