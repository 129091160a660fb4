"""Journal: one session's hold on a run. Every append is one conditional PUT over the version that it wrote last.

* **One start, one writer.** ``begin`` writes ``start`` with the next session number and a random ``writer``, so that
  two sessions never produce equal bytes. The session with the highest ``start`` is the writer.
* **Group commit.** Appends are serialised. What is asked for while a PUT is under way leaves together in the next one,
  in the order of the calls; each caller gets its own entries, once they are durable.
* **Reading back.** After a lost race, an unknown outcome or a failure, the session reads the journal before it writes
  again: if its entries are recorded, they are not written twice; if a higher session has started, this one is
  ``Fenced`` for good, whether or not its entries are recorded.
* **Sealing** (``Sealer``) runs while a PUT is under way. ``begin`` never seals, so that ``tidy`` can remove unused
  segments of a finished run.

Errors: ``Conflict`` from ``begin`` (read and decide again); ``Fenced``; ``Ambiguous`` and ``Unavailable`` reach every
caller that waits, after which the session may go on (it looks first); ``Invalid`` for an entry that the run's state
does not allow, which harms no other caller. A cancelled caller's entries may be recorded or not: ``history`` tells,
once the next append has been answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from holdfast.base import aio
from holdfast.base.clock import iso
from holdfast.base.errors import (
    Ambiguous,
    Conflict,
    Contended,
    Corrupt,
    Fenced,
    HoldfastError,
    Invalid,
    Refused,
    Unavailable,
)
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, OVERWRITE, IfMatch, Lost, Object, Store, Version, Written
from holdfast.runs import layout
from holdfast.runs.journal.attempt import Attempt, Call, compose, damaged, landed_attempt, superseded
from holdfast.runs.journal.entry import START, STEP, Draft, Entry
from holdfast.runs.journal.history import (
    PARALLEL_READS,
    History,
    JournalObject,
    format_body,
    parse_journal,
    read_history,
    read_previous,
)
from holdfast.runs.journal.segments import Ref, SegmentPolicy, digest, make_ref, plan_seal
from holdfast.runs.journal.state import RunState

Sent = TypeVar("Sent")

_log = logger("runs")


class Sealer:
    """Writes the tail of a journal into a segment while the journal's own PUT is under way; the next PUT replaces the
    tail by a reference. No PUT waits for a segment, and none refers to one that is not written. Sealing only saves
    bytes: if it fails, the tail stays long, and sealing is tried again later.
    """

    def __init__(self, store: Store, ambient: Ambient, policy: SegmentPolicy) -> None:
        self._store = store
        self._ambient = ambient
        self._policy = policy
        self._sealed: tuple[Ref, ...] | None = None
        """References for the next PUT, to segments written while an earlier one was under way."""
        self._seal_from = 0
        """The length of tail from which sealing is tried again after it failed."""

    def refs(self, history: History) -> tuple[Ref, ...]:
        """The references that the next PUT is to have."""
        return self._sealed if self._sealed is not None else history.refs

    def forget(self) -> None:
        """The sealed segments are referred to now, or belong to a history that is no longer current."""
        self._sealed = None

    def is_due(self, history: History, last: Entry) -> bool:
        """Whether to seal beside this PUT: a step is followed by another PUT, which refers to the segment."""
        return self._is_long(history, self._policy.lines) and last.type == STEP

    def is_overdue(self, history: History) -> bool:
        """Whether the tail is twice as long as it should be, because the run has no steps beside which to seal."""
        return self._is_long(history, 2 * self._policy.lines)

    def _is_long(self, history: History, lines: int) -> bool:
        """Whether the tail has this many lines and is due. Called at every PUT, so the cheap count comes first."""
        refs = history.refs
        length = len(history.lines) - (refs[-1].end if refs else 0)
        return (
            length >= lines and length >= self._seal_from and self._sealed is None and self._policy.is_due(history.tail)
        )

    async def catch_up(self, history: History) -> None:
        """Seal before a PUT."""
        self._sealed = await self.seal(history)

    async def beside(self, history: History, sending: Awaitable[Sent]) -> Sent:
        """The result of a PUT, with the tail sealed while it is under way."""
        sealing = asyncio.ensure_future(self.seal(history))
        try:
            return await sending
        except asyncio.CancelledError:
            sealing.cancel()
            raise
        finally:
            await asyncio.wait({sealing})
            self._sealed = None if sealing.cancelled() else sealing.result()

    async def seal(self, history: History) -> tuple[Ref, ...] | None:
        """Seal the tail. The references for the next PUT; None if it failed."""
        tail = history.tail
        seal = plan_seal(self._policy, history.refs, len(history.lines), sum(map(len, tail)))
        body = b"".join(history.lines[seal.first : seal.end])
        attempt = self._ambient.ids.write_id()
        try:
            await self._store.put(layout.segment_key(history.run_id, seal.level, seal.first, attempt), body, OVERWRITE)
        except HoldfastError as error:
            _log.warning("run %s: %d lines stay in its journal for now: %s", history.run_id, len(tail), error)
            self._seal_from = len(tail) + self._policy.lines
            return None
        self._seal_from = 0
        return (*seal.kept, make_ref(seal, body, attempt))


TRIES = 16
"""How often a session appends again after other programs have added lines without starting a session."""

TAKEOVER = RetryPolicy(attempts=20, base_ms=5, max_ms=250, deadline_ms=30_000)
"""How long a call keeps trying to open a session against others that do the same."""

CARRIED = ("workflow", "version", "metadata", "tags", "inputHash", "parent")
"""What a run keeps of its first ``start`` when it continues as new."""


Announce = Callable[[str, RunState], Awaitable[None]]


class Journal:
    sealer: ClassVar[type[Sealer]] = Sealer

    def __init__(
        self, store: Store, ambient: Ambient, history: History, session: int, writer: str, policy: SegmentPolicy
    ) -> None:
        """Use ``begin``. ``history`` is from now on this session's own."""
        self._store = store
        self._ambient = ambient
        self._policy = policy
        self._key = layout.journal_key(history.run_id)
        self._turn = asyncio.Lock()
        self._waiting: list[Call] = []
        self._in_doubt: list[Attempt] = []
        """Sent with an unknown outcome. All were conditional on the version that we know."""
        self._unclaimed: list[Call] = []
        """Recorded, although their callers got an error."""
        self._stopped: str | None = None
        self._sealer = self.sealer(store, ambient, policy)
        self.run_id = history.run_id
        self.session = session
        self.writer = writer
        self.history = history

    @property
    def state(self) -> RunState:
        return self.history.state

    @classmethod
    async def begin(
        cls,
        store: Store,
        ambient: Ambient,
        run_id: str,
        history: History | None,
        start: Mapping[str, Any],
        then: Sequence[Draft] = (),
        policy: SegmentPolicy | None = None,
        announce: Announce | None = None,
    ) -> Self:
        """Open a session on the run as ``history`` has it (None: it does not exist), with ``start`` and ``then`` in one
        PUT. ``Conflict`` if it is no longer so.

        ``announce`` is awaited before the first PUT of a run that does not exist yet, with the state that the PUT leads
        to: it writes the run's key in the index, so that a process killed after the PUT leaves a run that is found.
        """
        base = history.copy() if history is not None else History(layout.check_run_id(run_id))
        if base.state.status == "deleted":
            raise Refused(f"run {run_id} was deleted", remedy="use another run id")
        session, writer = base.state.session + 1, cls.draw_writer(ambient)
        journal = cls(store, ambient, base, session, writer, policy if policy is not None else SegmentPolicy())
        await journal._open(start, then, announce)
        return journal

    async def append(self, *drafts: Draft) -> list[Entry]:
        """Record entries, in this order and next to each other; as they are recorded, once they are durable."""
        if not drafts:
            return []
        call = Call(drafts)
        self._waiting.append(call)
        try:
            await self._turn.acquire()
            try:
                if call.entries is None and call.error is None:
                    await self._send_waiting()
            finally:
                self._turn.release()
        except BaseException:
            if not call.settled:
                call.given_up = True
                if call in self._waiting:
                    self._waiting.remove(call)
            raise
        if call.error is not None:
            raise call.error
        return call.entries if call.entries is not None else []

    def hold(self, *drafts: Draft) -> None:
        """Record entries with the next append, before its entries. Costs no request."""
        self._waiting.append(Call(drafts))

    async def continue_as_new(self, start: Mapping[str, Any], then: Sequence[Draft] = ()) -> None:
        """Retire the history and go on with a fresh one, under the next session number, in one conditional PUT.

        The fields in ``CARRIED`` are kept, unless ``start`` has other values for them.
        """
        async with self._turn:
            if self._waiting:
                await self._send_waiting()
            for _ in range(TRIES):
                if self._stopped is not None:
                    raise self._stop(self._stopped)
                if self._in_doubt:
                    await self._look(None)
                fields = {**self._carried(), **start, "previous": await self._archive()}
                try:
                    fresh = await self.supersede(self._store, self._ambient, self.history, fields, then, self._policy)
                except Conflict:
                    await self._look(None)
                    continue
                self.session, self.writer, self.history = fresh.session, fresh.writer, fresh.history
                self._unclaimed, self._sealer = [], self.sealer(self._store, self._ambient, self._policy)
                return
        raise self._overtaken()

    @classmethod
    async def supersede(
        cls,
        store: Store,
        ambient: Ambient,
        history: History,
        start: Mapping[str, Any],
        then: Sequence[Draft] = (),
        policy: SegmentPolicy | None = None,
    ) -> Self:
        """Open a session on a fresh history in place of ``history``: the next generation. Errors: see ``begin``."""
        fresh = History(history.run_id, version=history.version)
        session, writer = history.state.session + 1, cls.draw_writer(ambient)
        journal = cls(store, ambient, fresh, session, writer, policy if policy is not None else SegmentPolicy())
        await journal._open({**start, "generation": history.state.generation + 1}, then)
        return journal

    # --- opening ---

    @staticmethod
    def draw_writer(ambient: Ambient) -> str:
        return ambient.ids.unique()

    async def _open(self, start: Mapping[str, Any], then: Sequence[Draft], announce: Announce | None = None) -> None:
        """Write our ``start`` over the version of our history."""
        version = self.history.version
        call = Call((Draft(START, {**start, "writer": self.writer}), *then))
        attempt = compose([call], self.history, self.history.refs, self.session, self._time(), opening=True)
        if call.error is not None:
            raise call.error
        mode = CREATE if version is None else IfMatch(version)
        if announce is not None and version is None:
            await announce(self.run_id, attempt.state)
        try:
            outcome = await self._store.put(self._key, self._body(attempt), mode)
        except Contended as error:
            raise _unknown(self.run_id, error) from error
        if isinstance(outcome, Written):
            self._adopt(attempt, outcome.version)
            return
        try:
            found = outcome.current if outcome.current is not None else await self._store.find(self._key)
            history = await self._recognise(found) if found is not None else None
        except Unavailable as error:
            raise _unknown(self.run_id, error) from error
        if history is None:
            what = "changed" if version is not None else "was started by another process"
            raise Conflict(f"run {self.run_id} {what} while session {self.session} was being opened")
        if history.state.session > self.session:
            raise Fenced(f"run {self.run_id}: session {self.session} was superseded as soon as it had started")
        self.history = history

    async def _recognise(self, found: Object) -> History | None:
        """The run's history, if our ``start`` is in it or in a generation that has been retired since."""
        if parse_journal(found).session < self.session:
            return None
        current = await read_history(self._store, self.run_id, found=found)
        history = current
        while history is not None and history.state.session >= self.session:
            if any(entry.type == START and entry.fields.get("writer") == self.writer for entry in history.entries):
                return current
            history = await read_previous(self._store, history)
        return None

    def _carried(self) -> dict[str, Any]:
        state = self.state
        kept = {name: state.start[name] for name in CARRIED if name in state.start}
        if state.source is not None:
            kept["source"] = state.source
        if state.cancelled_at is not None:
            kept |= {"cancelling": True, "reason": state.cancel_reason}
        return kept

    async def _archive(self) -> dict[str, Any]:
        """A copy of the journal object; its segments stay where they are. The reference for the next generation."""
        body = self.history.body()
        key = layout.generation_key(self.run_id, self.state.generation, self._ambient.ids.write_id())
        await self._store.put(key, body, OVERWRITE)
        return {"generation": self.state.generation, "key": key, "sha256": digest(body), "bytes": len(body)}

    # --- appending ---

    async def _send_waiting(self) -> None:
        """Send everything in the queue. An error is set on all queued calls, not raised."""
        sending: list[Call] = []
        try:
            for _ in range(TRIES):
                if await self._is_sent(sending):
                    return
            raise self._overtaken()
        except Exception as error:  # noqa: BLE001  # handed to every caller, who raises it
            doubtful = {id(call) for attempt in self._in_doubt for call, _ in attempt.calls}
            for call in (*sending, *self._waiting):
                if not call.settled:
                    call.error = _unknown(self.run_id, error) if id(call) in doubtful else error
                    call.given_up = True
            self._waiting.clear()
        except BaseException:
            # Cancelled: the next call in the queue sends what this one was sending.
            self._waiting[:0] = [call for call in sending if call.wanted]
            raise

    async def _is_sent(self, sending: list[Call]) -> bool:
        """Send ``sending`` and the queue; False if another writer came first, so that they must be sent again."""
        if self._stopped is not None:
            raise self._stop(self._stopped)
        if self._in_doubt:
            await self._look(None)
        if self._sealer.is_overdue(self.history):
            await self._sealer.catch_up(self.history)
        sending += self._waiting
        self._waiting = []
        if self._unclaimed:
            self._claim(sending)
        wanted, refs = [call for call in sending if call.wanted], self._sealer.refs(self.history)
        attempt = compose(wanted, self.history, refs, self.session, self._time())
        if not attempt.entries:
            return True
        outcome = await self._put(attempt)
        if isinstance(outcome, Written):
            attempt.settle(attempt.entries)
            self._adopt(attempt, outcome.version)
            return True
        await self._look(outcome.current)
        return False

    async def _put(self, attempt: Attempt) -> Written | Lost:
        """Send the attempt. Its outcome is unknown from now on, unless the store answers that nothing was written."""
        self._in_doubt.append(attempt)
        try:
            sending = self._store.put(self._key, self._body(attempt), IfMatch(self._known_version()))
            if self._sealer.is_due(self.history, attempt.entries[-1]):
                return await self._sealer.beside(self.history, sending)
            return await sending
        except Unavailable as error:
            if not (error.maybe_applied or isinstance(error, Contended)):
                self._in_doubt.remove(attempt)
            raise

    def _claim(self, calls: Iterable[Call]) -> None:
        """A call that repeats one which failed and landed, however late, gets the entries of that one."""
        for call in calls:
            earlier = next((old for old in self._unclaimed if call.wanted and old.drafts == call.drafts), None)
            if earlier is not None:
                self._unclaimed.remove(earlier)
                call.entries = earlier.entries

    def _body(self, attempt: Attempt) -> bytes:
        first = attempt.refs[-1].end if attempt.refs else 0
        return format_body(attempt.refs, attempt.state, [*self.history.lines[first:], *attempt.lines])

    def _adopt(self, attempt: Attempt, version: Version) -> None:
        """The attempt has landed. Our other attempts on the version before cannot land any more."""
        history = self.history
        history.entries += attempt.entries
        history.lines += attempt.lines
        if attempt.refs is not history.refs:
            self._sealer.forget()
        history.refs, history.state, history.version = attempt.refs, attempt.state, version
        self._in_doubt.clear()

    # --- reading back ---

    async def _look(self, current: Object | None) -> None:
        """Read the journal: which attempts of unknown outcome have landed, and whether this session may go on."""
        found = current if current is not None else await self._store.find(self._key)
        if found is None:
            raise self._stop("its journal is gone")
        if found.version == self.history.version:
            return  # nothing has landed so far; what is on its way loses against our next PUT, or wins against it
        parsed = parse_journal(found)
        if parsed.session > self.session:
            raise self._stop(f"session {parsed.session} has started")
        history = await read_history(self._store, self.run_id, found=found, known=self._known_segments())
        if history is None:
            raise self._stop("its journal is gone")
        if reason := superseded(history.state, self.session, self.writer):
            raise self._stop(reason)
        if reason := damaged(history.state, self.session, len(self.history.entries)):
            raise Corrupt(f"{self._key}: {reason}", remedy="find out what replaced the journal by older bytes")
        landed = self.find_landed(history.entries)
        if landed is not None:
            landed.settle(history.entries[landed.entries[0].offset :])
            self._unclaimed += [call for call, _ in landed.calls if call.given_up]
        self.history = history
        self._sealer.forget()
        self._in_doubt.clear()
        if history.state.finished and (landed is None or landed.entries[-1].offset < len(history.entries) - 1):
            fenced = self._stop(f"another process has ended the run: it is {history.state.status}")
            if landed is None:
                raise fenced

    def find_landed(self, recorded: Sequence[Entry]) -> Attempt | None:
        return landed_attempt(recorded, self._in_doubt)

    def _known_segments(self) -> dict[Ref, list[bytes]]:
        """Segments of ours need not be read again, whether or not the PUT that refers to them has landed."""
        refs = {*self.history.refs, *(ref for attempt in self._in_doubt for ref in attempt.refs)}
        return {ref: self.history.lines[ref.first : ref.end] for ref in refs}

    def _time(self) -> str:
        return iso(self._ambient.clock.wall_ns())

    def _known_version(self) -> Version:
        if self.history.version is None:
            raise Invalid(f"run {self.run_id}: the session has not begun")
        return self.history.version

    def _stop(self, reason: str) -> Fenced:
        self._stopped = reason
        return Fenced(f"run {self.run_id}: session {self.session} must stop: {reason}")

    def _overtaken(self) -> Conflict:
        return Conflict(f"run {self.run_id}: others kept writing to the journal of session {self.session}")


def _unknown(run_id: str, error: Exception) -> Exception:
    """The error for a caller whose entries may have been recorded, when reading the journal failed."""
    if isinstance(error, Unavailable):
        return Ambiguous(f"run {run_id}: the entries may or may not be recorded ({error})")
    return error


async def unreferenced(store: Store, run_id: str, listed: Collection[str]) -> list[str]:
    """Those of these segments and payloads of a run that nothing refers to and nothing will; none of a run that is not
    over. They were listed before this reads the journal: once that is finished, a session that goes on with the run
    opens it again and writes new keys.
    """
    journal = await store.find(layout.journal_key(run_id))
    parsed = parse_journal(journal) if journal is not None else None
    if journal is None or parsed is None or not parsed.finished:
        return []
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
    """Whether a run that is over can have left segments: by merging them, or in a session that was cut short."""
    merged = any(ref.level > 0 for ref in history.refs)
    return history.state.finished and (merged or (bool(history.refs) and history.state.session > 1))


async def tidy(store: Store, run_id: str) -> int:
    """Remove the segments of a finished run that nothing refers to; how many. A run that is not over is left alone."""
    garbage = await unreferenced(store, run_id, [key async for key in store.keys(layout.segment_folder(run_id))])
    if garbage:
        await store.delete_many(garbage)
    return len(garbage)
