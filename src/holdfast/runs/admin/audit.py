"""One run against everything that its journal refers to, and the index against the journals. Reads alone.

A run costs one GET for its journal and one for each segment, and one HEAD (of a run that is not over: one LIST) for its
place in the index. Payloads are known from the listing that led to the run, with their lengths; the bytes of some, or
of all, are read. A run whose journal changes now is left alone: its next audit judges it.

Errors: whatever is wrong with a run is a finding about it; only a store that does not answer fails a look.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.audit import Look, Severity, Tally, rules
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, NotFound
from holdfast.objects.store import Entry, Object, Store
from holdfast.runs import layout
from holdfast.runs.journal.history import History, JournalObject, parse_journal, read_history, read_previous
from holdfast.runs.journal.payload import get_payload
from holdfast.runs.journal.summary import RunSummary, index_key, open_folder, read_key, summarise

_RESTORE = "restore the object from a backup, a version or a replica of the store"
_REBUILD = "holdfast runs reindex"

RULES = {
    **rules(
        Severity.ERROR,
        corrupt_journal=("a journal cannot be read, or its entries do not follow from each other", _RESTORE),
        missing_segment=("a journal refers to a segment that is not there", _RESTORE),
        corrupt_segment=("a segment is not the one that was sealed", _RESTORE),
        missing_payload=("a journal refers to a payload that is not there", _RESTORE),
        corrupt_payload=("a payload is not the one that its journal refers to", _RESTORE),
        corrupt_history=("a journal that was retired is not the one that its successor refers to", _RESTORE),
    ),
    **rules(
        Severity.WARNING,
        missing_history=("the journal that a run had before it continued as new is not there", _RESTORE),
        index_missing=("the index does not say where a run stands: lists and workers do not see it", _REBUILD),
        index_of_no_run=("the index names a run that does not exist", _REBUILD),
        foreign_object=("an object in a prefix of ours whose name is none of ours", "find out who put it there"),
    ),
    **rules(
        Severity.INFORMATION,
        deleted_leftovers=("objects of a deleted run are still there", "holdfast gc, or delete the run again"),
        no_journal=("objects of a run that has no journal: a fork that died, or one on its way", "nothing"),
    ),
}  # fmt: skip

_KINDS = frozenset(("segments", "payloads", "mail", "forks", "generations"))


@dataclass(slots=True)
class Folder:
    """What is in the folder of one run."""

    run_id: str
    sizes: dict[str, int] = field(default_factory=dict)
    journal: Entry | None = None
    foreign: list[Entry] = field(default_factory=list)
    latest_ns: int = 0

    @classmethod
    def of(cls, run_id: str, entries: Iterable[Entry]) -> "Folder":
        folder = cls(run_id)
        for entry in entries:
            parts = entry.key.split("/")
            folder.latest_ns = max(folder.latest_ns, entry.modified_ns)
            if entry.key == layout.journal_key(run_id):
                folder.journal = entry
            elif len(parts) > 3 and parts[2] in _KINDS:
                folder.sizes[entry.key] = entry.size
            else:
                folder.foreign.append(entry)
        return folder


@dataclass(frozen=True, slots=True)
class RunCheck:
    store: Store
    look: Look

    async def run(self, folder: Folder, tally: Tally) -> None:
        for entry in folder.foreign:
            if self.look.judges(entry.modified_ns):
                tally.find(RULES["foreign_object"], entry.key, "no object of a run has such a name")
        journal = folder.journal
        if journal is None:
            self._no_journal(folder, tally)
            return
        if not self.look.judges(journal.modified_ns):
            tally.checked["runs at work"] += 1
            return
        found = await self.store.find(journal.key)
        if found is None or found.modified_ns != journal.modified_ns:
            return  # a session has just written to it
        tally.checked["runs"] += 1
        history = await self._history(folder, found, tally)
        if history is None:
            return
        if history.state.status == "deleted":
            if folder.sizes:
                what = f"{len(folder.sizes)} objects are left, such as {min(folder.sizes)}"
                tally.find(RULES["deleted_leftovers"], journal.key, what)
            return
        for line in history.entries:
            reference = line.fields.get("payload")
            if isinstance(reference, dict):
                await self._payload(folder, reference, tally)
        await self._previous(folder, history, tally)
        await self._indexed(history, tally)

    def _no_journal(self, folder: Folder, tally: Tally) -> None:
        own = [key for key in folder.sizes if key.split("/")[2] in ("segments", "payloads", "generations")]
        if own and self.look.judges(folder.latest_ns):  # mail and registrations may come before a run
            tally.find(RULES["no_journal"], layout.run_folder(folder.run_id), f"{len(own)} objects, such as {min(own)}")

    # --- journal and segments ---

    async def _history(self, folder: Folder, found: Object, tally: Tally) -> History | None:
        try:
            parsed = parse_journal(found)
        except (Corrupt, Incompatible) as error:
            tally.find(RULES["corrupt_journal"], found.key, str(error))
            return None
        if not self._segments(folder, parsed, found.key, tally):
            return None
        try:
            return await read_history(self.store, folder.run_id, found=found)
        except (Corrupt, Incompatible) as error:
            named = str(error).partition(": ")[0]
            sealed = named.startswith(layout.segment_folder(folder.run_id))
            rule = RULES["corrupt_segment" if sealed else "corrupt_journal"]
            tally.find(rule, named if sealed else found.key, str(error))
            return None

    def _segments(self, folder: Folder, parsed: JournalObject, journal: str, tally: Tally) -> bool:
        whole = True
        for ref in parsed.refs:
            key = layout.segment_key(folder.run_id, ref.level, ref.first, ref.attempt)
            size = folder.sizes.get(key)
            tally.checked["segments"] += 1
            if size is None:
                tally.find(RULES["missing_segment"], key, f"{journal} refers to it")
            elif size != ref.size:
                tally.find(RULES["corrupt_segment"], key, f"it has {size} bytes, and {ref.size} were sealed")
            whole = whole and size == ref.size
        return whole

    # --- what entries refer to ---

    async def _payload(self, folder: Folder, reference: dict[str, Any], tally: Tally) -> None:
        tally.checked["payloads"] += 1
        key = str(reference.get("key"))
        journal = layout.journal_key(folder.run_id)
        try:
            size = folder.sizes[key] if key in folder.sizes else (await self.store.head(key)).size
            if size != reference.get("bytes"):
                raise Corrupt(f"{key}: it has {size} bytes, and {reference.get('bytes')} were recorded")
            if self.look.closely(key):
                tally.checked["payloads read"] += 1
                await get_payload(self.store, reference)
        except NotFound:
            tally.find(RULES["missing_payload"], key, f"{journal} refers to it")
        except HoldfastError as error:
            if error.kind not in ("corrupt", "invalid"):
                raise
            tally.find(RULES["corrupt_payload"], key, str(error))

    async def _previous(self, folder: Folder, history: History, tally: Tally) -> None:
        previous = history.state.start.get("previous")
        key = str(previous.get("key")) if isinstance(previous, dict) else ""
        if not key.startswith(layout.generation_folder(history.run_id)):
            return  # a fork has the first line of its source
        tally.checked["retired journals"] += 1
        if key not in folder.sizes:
            tally.find(RULES["missing_history"], key, f"{layout.journal_key(history.run_id)} refers to it")
            return
        try:
            await read_previous(self.store, history)
        except (Corrupt, Incompatible) as error:
            tally.find(RULES["corrupt_history"], key, str(error))

    async def _indexed(self, history: History, tally: Tally) -> None:
        """The index has the state of a run since its last change of status; steps are not written there."""
        summary = summarise(history.run_id, history.state)
        key = layout.journal_key(history.run_id)
        if summary.finished:
            try:
                await self.store.head(index_key(summary))
            except NotFound:
                tally.find(RULES["index_missing"], key, f"there is no {index_key(summary)}")
            return
        said = [read_key(each) async for each in self.store.keys(open_folder(history.run_id))]
        known = [each[1] for each in said if each is not None and isinstance(each[1], RunSummary)]
        if not any((each.status, each.session) == (summary.status, summary.session) for each in known):
            tally.find(RULES["index_missing"], key, f"nothing says that it is {summary.status}")

    async def indexed(self, entry: Entry, tally: Tally) -> None:
        """A key of the index: the run that it names is there."""
        said = read_key(entry.key)
        tally.checked["index entries of runs"] += 1
        if said is None:
            tally.find(RULES["foreign_object"], entry.key, "it is not the key of a run")
        elif isinstance(said[1], RunSummary) and self.look.judges(entry.modified_ns):  # it is written before its run
            try:
                await self.store.head(layout.journal_key(said[0]))
            except NotFound:
                tally.find(RULES["index_of_no_run"], entry.key, f"there is no run {said[0]}")
