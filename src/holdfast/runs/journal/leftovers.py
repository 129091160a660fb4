"""What of a run's objects may be removed: what a deleted run has left, and what a finished run does not refer to.

List first, then read the journal: if it is finished, what was listed and is not referred to never will be, because a
session that appends to a finished run must first be opened, and opening does not seal.
"""

from collections.abc import Collection

from holdfast.base import aio
from holdfast.objects.store import Store
from holdfast.runs import layout
from holdfast.runs.journal.history import PARALLEL_READS, History, JournalObject, parse_journal, read_history
from holdfast.runs.journal.state import DELETE, meaning


def leftovers(run_id: str, listed: Collection[str]) -> list[str]:
    """Those of the keys of a deleted run that may go: all but its tombstone.

    Earlier versions made forks that share payloads with their source, and registered them there: a run that has such
    registrations keeps its payloads.
    """
    stays = {layout.journal_key(run_id)}
    shared = layout.fork_folder(run_id)
    if any(key.startswith(shared) for key in listed):
        stays |= {key for key in listed if key.startswith((shared, layout.payload_folder(run_id)))}
    return [key for key in listed if key not in stays]


async def unreferenced(store: Store, run_id: str, listed: Collection[str]) -> list[str]:
    """Those of these keys of a run, which were listed before, that may go; none of a run that is not over."""
    journal = await store.find(layout.journal_key(run_id))
    parsed = parse_journal(journal) if journal is not None else None
    if journal is None or parsed is None or not parsed.finished:
        return []
    if meaning(parsed.entries[-1]) == DELETE:
        return leftovers(run_id, listed)
    used = await _used_segments(store, run_id, parsed)
    found = [key for key in listed if key.startswith(layout.segment_folder(run_id)) and key not in used]
    payloads = [key for key in listed if key.startswith(layout.payload_folder(run_id))]
    if payloads and not parsed.generation:  # earlier histories may refer to more
        history = await read_history(store, run_id, found=journal)
        if history is not None:
            references = [entry.fields.get("payload") for entry in history.entries]
            named = {str(each.get("key")) for each in references if isinstance(each, dict)}
            found += [key for key in payloads if key not in named]
    return found


async def _used_segments(store: Store, run_id: str, parsed: JournalObject) -> set[str]:
    folder = layout.generation_folder(run_id)
    archives = [key async for key in store.keys(folder)] if parsed.generation else []
    retired = await aio.map_bounded(archives, store.get, limit=PARALLEL_READS)
    refs = {ref for each in (parsed, *map(parse_journal, retired)) for ref in each.refs}
    return {layout.segment_key(run_id, ref.level, ref.first, ref.attempt) for ref in refs}


def may_need_tidying(history: History) -> bool:
    """Whether a run that has ended can have left segments: by merging them, or in a session that was cut short."""
    merged = any(ref.level > 0 for ref in history.refs)
    return history.state.finished and (merged or (bool(history.refs) and history.state.session > 1))


async def tidy(store: Store, run_id: str) -> int:
    """Remove the segments of a finished run that nothing refers to; how many. A run that is not over is left alone."""
    garbage = await unreferenced(store, run_id, [key async for key in store.keys(layout.segment_folder(run_id))])
    if garbage:
        await store.delete_many(garbage)
    return len(garbage)
