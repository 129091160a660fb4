"""Leftovers of runs; and runs, events and the pipeline's own records past their retention.

Of a deleted run everything is removed but its tombstone: an interrupted deletion, or a payload written after it, leaves
such objects. Of a finished run the segments and payloads are removed that nothing refers to: fenced sessions wrote
them. A run that is not over is left alone. A part is a range of ids; a folder with nothing but a journal costs only its
share of a listing.

Events are removed as by ``bus.cleanup``: the boundary first, then events, then claims. The record of an expiry
(``expired/v1/``) is never removed.
"""

from collections.abc import AsyncIterator, Sequence

from holdfast.base.errors import Conflict, Corrupt, NotFound, Refused
from holdfast.bus import Bus
from holdfast.bus import layout as bus
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.gc.sweep import GC, Sweep
from holdfast.pipeline.gc.sweep import runs as recorded_runs
from holdfast.platform.outbox import Outbox
from holdfast.runs import layout
from holdfast.runs.admin.delete import check_deletable, delete
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.leftovers import unreferenced
from holdfast.runs.journal.state import FINISHED

GROUP = 2_000
"""Runs in one part."""
LOOSE = "its run has ended or was deleted, and nothing refers to it"
YOUNG = "written a short time ago"
DAMAGED = "the journal of its run cannot be read"
EXPIRED = "the run ended longer ago than runs are kept"
NEEDED = "it is past its retention, and a session works on it"
OLD = "a record older than records are kept"
SETTLED = "every handler is done with it, and it is older than events are kept"
PIPELINE = "pipeline."


async def run_ranges(store: Store) -> list[str]:
    """Ranges of ids: each from after one id, up to and including another. Only the ends of ranges are held in
    memory."""
    ends: list[str] = []
    count, last = 0, ""
    async for page in store.list(layout.ROOT, delimiter=True):
        for folder in page.folders:
            count, last = count + 1, layout.run_of_folder(folder)
            if count % GROUP == 0:
                ends.append(last)
    if count % GROUP:
        ends.append(last)
    return [f"{low}/{high}" for low, high in zip(["", *ends], ends, strict=False)]


async def sweep_runs(ids: str, out: Sweep) -> None:
    low, _, high = ids.partition("/")
    async for run_id, entries in _folders(out.store, low, high):
        out.looked()
        if any(entry.key != layout.journal_key(run_id) for entry in entries):
            try:
                await _sweep_run(run_id, entries, out)
            except Corrupt:
                out.keep(DAMAGED, layout.journal_key(run_id))
        if out.exhausted():
            return


async def _sweep_run(run_id: str, entries: list[Entry], out: Sweep) -> None:
    keys = set(await unreferenced(out.store, run_id, [entry.key for entry in entries]))
    for entry in entries:
        if entry.key not in keys:
            continue
        if entry.modified_ns > out.ask.now_ns - out.options.grace_ns:
            out.keep(YOUNG, entry.key)
        elif not await out.remove(entry.key, entry.size, LOOSE):
            return


async def _folders(store: Store, low: str, high: str) -> AsyncIterator[tuple[str, list[Entry]]]:
    """The objects in each run's folder, for runs after ``low`` up to ``high``."""
    run_id, entries = "", list[Entry]()
    # "0" is what follows the slash: everything in the folder of ``low`` comes before.
    async for page in store.list(layout.ROOT, after=f"{layout.ROOT}{low}0" if low else None):
        for entry in page.entries:
            found = entry.key.removeprefix(layout.ROOT).partition("/")[0]
            if found != run_id:
                if entries:
                    yield run_id, entries
                if f"{found}/" > f"{high}/":
                    return
                run_id, entries = found, []
            entries.append(entry)
    if entries:
        yield run_id, entries


# --- retention ---


async def one_part(store: Store) -> list[str]:
    """Finished runs are found in the index, the earliest first; records of garbage collection by their folders."""
    return ["all"]


async def expire_runs(_: str, out: Sweep) -> None:
    """Delete finished runs past their retention, except those of the pipeline, which have their own retention."""
    await _expire(out, out.options.runs_ns, own=False)


async def expire_records(_: str, out: Sweep) -> None:
    """Delete the records of what past runs of garbage collection removed, and the pipeline's own runs."""
    age_ns = out.options.records_ns
    if age_ns is None:
        return
    for run_id in await recorded_runs(out.store):
        if run_id == out.ask.run_id:
            continue
        entries = [entry async for page in out.store.list(f"{GC}{run_id}/") for entry in page.entries]
        if all(entry.modified_ns <= out.ask.now_ns - age_ns for entry in entries):
            for entry in entries:
                if not await out.remove(entry.key, entry.size, OLD):
                    return
    await out.flush()
    await _expire(out, age_ns, own=True)


async def _expire(out: Sweep, age_ns: int | None, *, own: bool) -> None:
    if age_ns is None:
        return
    async for summary in RunIndex(out.store, out.ambient).list(status=FINISHED, until_ns=out.ask.now_ns - age_ns):
        if summary.status == "deleted" or summary.workflow.startswith(PIPELINE) is not own:
            continue
        out.looked()
        if out.exhausted():
            return
        await _delete(summary.run_id, out)


async def _delete(run_id: str, out: Sweep) -> None:
    """A tombstone replaces the journal, so the run's id is never used again; everything else is removed."""
    try:
        if out.ask.apply:
            await check_deletable(out.store, run_id)
        await out.about_to([(layout.run_folder(run_id), 0, EXPIRED)])
        if out.ask.apply:
            await delete(out.store, run_id)
    except (Refused, NotFound, Conflict, Corrupt):
        out.keep(NEEDED, layout.journal_key(run_id))


async def namespaces(store: Store) -> list[str]:
    found: list[str] = []
    async for page in store.list(bus.EVENTS, delimiter=True):
        found += [folder.removeprefix(bus.EVENTS).rstrip("/") for folder in page.folders]
    return found


async def expire_events(namespace: str, out: Sweep) -> None:
    if out.options.events_ns is None:
        return

    async def tell(keys: Sequence[str]) -> None:
        out.looked(len(keys))
        await out.about_to([(key, 0, SETTLED) for key in keys])

    apply = out.ask.apply
    mend = Outbox(out.store, out.ambient).mend if apply else None
    before_ns = min(out.ask.now_ns - out.options.events_ns, out.ambient.clock.wall_ns())
    bus_of = Bus(out.store, out.ambient, namespace, mend=mend)
    await bus_of.cleanup(before_ns=before_ns, dry_run=not apply, tell=tell)
