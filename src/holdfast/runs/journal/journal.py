"""Journal: one session's hold on a run. Every append is one conditional PUT over the version that it wrote last.

* **One start, one writer.** ``begin`` writes ``start`` with the next session number and a random ``writer``, so that
  two sessions never produce equal bytes. The session with the highest ``start`` is the writer.
* **Group commit.** One task sends. What is asked for while a PUT is under way leaves together in the next one, in the
  order of the calls; each caller gets its own entries, once they are durable. A caller that is cancelled meanwhile
  stops nothing: what was sent for it may be recorded.
* **Reading back.** After a lost race the session reads the journal before it writes again: if its entries are
  recorded, they are not written twice; if a higher session has started, this one is ``Fenced``, whether or not its
  entries are recorded.
* **An unknown outcome ends the session.** A PUT that failed may land later, so this session writes nothing more; the
  next one finds out.
* **Sealing.** A long tail is written into a segment before the PUT that refers to it. It only saves bytes: if it
  fails, the tail stays long. ``begin`` never seals, so that ``tidy`` can remove unused segments of a finished run.

Errors: ``Conflict`` from ``begin`` (read and decide again); ``Fenced``, ``Ambiguous`` and ``Unavailable`` reach every
caller that waits, and every later one; ``Invalid`` for an entry that the run's state does not allow, which harms no
other caller.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

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
from holdfast.objects.store import CREATE, OVERWRITE, IfMatch, Object, Store, Version, Written
from holdfast.runs import layout
from holdfast.runs.journal.attempt import Attempt, damaged, superseded
from holdfast.runs.journal.entry import START, Draft, Entry
from holdfast.runs.journal.history import (
    History,
    format_body,
    parse_journal,
    read_history,
    read_previous,
)
from holdfast.runs.journal.segments import SegmentPolicy, digest, make_ref, plan_seal
from holdfast.runs.journal.state import RunState

_log = logger("runs")

TRIES = 16
"""How often a session appends again after other programs have added lines without starting a session."""

TAKEOVER = RetryPolicy(attempts=20, base_ms=5, max_ms=250, deadline_ms=30_000)
"""How long a call keeps trying to open a session against others that do the same."""

CARRIED = ("workflow", "version", "metadata", "tags", "inputHash", "parent")
"""What a run keeps of its first ``start`` when it continues as new."""


Announce = Callable[[str, RunState], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Call:
    """One caller's entries, and the future that it awaits; None for entries that wait for others."""

    drafts: tuple[Draft, ...]
    answer: asyncio.Future[list[Entry]] | None = None

    @property
    def is_wanted(self) -> bool:
        return self.answer is None or not self.answer.done()

    def record(self, entries: list[Entry]) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(entries)

    def fail(self, error: Exception) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)

    def give_up(self) -> None:
        if self.answer is not None:
            self.answer.cancel()


class Journal:
    def __init__(
        self, store: Store, ambient: Ambient, history: History, session: int, writer: str, policy: SegmentPolicy
    ) -> None:
        """Use ``begin``. ``history`` is from now on this session's own."""
        self._store = store
        self._ambient = ambient
        self._policy = policy
        self._key = layout.journal_key(history.run_id)
        self._waiting: list[_Call] = []
        self._sender: asyncio.Task[None] | None = None
        self._stopped: Exception | None = None
        """Why this session writes nothing more."""
        self._seal_from = 0
        """The length of tail from which sealing is tried again after it failed."""
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
        if self._stopped is not None:
            raise self._stopped
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(drafts, answer))
        self._send()
        recorded: list[Entry] = await answer
        return recorded

    def hold(self, *drafts: Draft) -> None:
        """Record entries with the next append, before its entries. Costs no request."""
        self._waiting.append(_Call(drafts))

    async def close(self) -> None:
        """Write nothing more. What is being sent is recorded or not."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait({self._sender})

    async def continue_as_new(self, start: Mapping[str, Any], then: Sequence[Draft] = ()) -> None:
        """Retire the history and continue with a fresh one, under the next session number, in one conditional PUT.

        The fields in ``CARRIED`` are kept, unless ``start`` has other values for them. Nothing may be appended
        meanwhile.
        """
        if self._waiting:
            self._send()
        if self._sender is not None:
            await asyncio.wait({self._sender})
        for _ in range(TRIES):
            if self._stopped is not None:
                raise self._stopped
            fields = {**self._carried(), **start, "previous": await self._archive()}
            try:
                fresh = await self.supersede(self._store, self._ambient, self.history, fields, then, self._policy)
            except Conflict:
                await self._read_back(None)
                continue
            self.session, self.writer, self.history = fresh.session, fresh.writer, fresh.history
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
        attempt = self._attempt()
        attempt.add((Draft(START, {**start, "writer": self.writer}), *then), opening=True)
        if announce is not None and version is None:
            await announce(self.run_id, attempt.state)
        try:
            outcome = await self._store.put(
                self._key, self._body(attempt), CREATE if version is None else IfMatch(version)
            )
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

    def _send(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send_waiting())

    async def _send_waiting(self) -> None:
        """Send what waits, for as long as a caller waits. An error reaches all callers, and ends the session."""
        while True:
            calls, self._waiting = [call for call in self._waiting if call.is_wanted], []
            try:
                await self._record(calls)
            except Exception as error:  # noqa: BLE001  # every caller raises it
                self._stopped = error
                calls += self._waiting
                self._waiting = []
                for call in calls:
                    call.fail(error)
            except BaseException:
                for call in (*calls, *self._waiting):
                    call.give_up()
                raise
            if all(call.answer is None for call in self._waiting):
                return

    async def _record(self, calls: Sequence[_Call]) -> None:
        """Record what these callers want, in one PUT; in another one if other programs have added lines meanwhile."""
        await self._seal_if_due()
        for _ in range(TRIES):
            attempt = self._attempt()
            places: list[tuple[_Call, slice]] = []
            for call in calls:
                try:
                    places.append((call, attempt.add(call.drafts)))
                except Invalid as error:
                    call.fail(error)
            if not places or await self._is_recorded(attempt):
                for call, place in places:
                    call.record(self.history.entries[place])
                return
            calls = [call for call, _ in places]
        raise self._overtaken()

    async def _is_recorded(self, attempt: Attempt) -> bool:
        """Send the attempt; False if another program came first, so that it must be written on top."""
        try:
            outcome = await self._store.put(self._key, self._body(attempt), IfMatch(self._known_version()))
        except Unavailable as error:
            if error.maybe_applied or isinstance(error, Contended):
                raise _unknown(self.run_id, error) from error
            raise
        if isinstance(outcome, Written):
            self._adopt(attempt, outcome.version)
            return True
        try:
            return await self._read_back(outcome.current, attempt)
        except Unavailable as error:
            raise _unknown(self.run_id, error) from error

    def _attempt(self) -> Attempt:
        return Attempt(self.run_id, self.session, iso(self._ambient.clock.wall_ns()), self.state)

    def _body(self, attempt: Attempt) -> bytes:
        return format_body(self.history.refs, attempt.state, [*self.history.tail, *attempt.lines])

    def _adopt(self, attempt: Attempt, version: Version) -> None:
        history = self.history
        history.entries += attempt.entries
        history.lines += attempt.lines
        history.state, history.version = attempt.state, version

    async def _seal_if_due(self) -> None:
        """Write a long tail into a segment. The next PUT has the reference to it in place of the lines."""
        history = self.history
        tail = history.tail
        if len(tail) >= self._seal_from and self._policy.is_due(tail):
            try:
                await self._seal(history)
            except HoldfastError as error:
                _log.warning("run %s: %d lines stay in its journal for now: %s", self.run_id, len(tail), error)
                self._seal_from = len(tail) + self._policy.lines
            else:
                self._seal_from = 0

    async def _seal(self, history: History) -> None:
        seal = plan_seal(self._policy, history.refs, len(history.lines), sum(map(len, history.tail)))
        body = b"".join(history.lines[seal.first : seal.end])
        attempt = self._ambient.ids.write_id()
        await self._store.put(layout.segment_key(self.run_id, seal.level, seal.first, attempt), body, OVERWRITE)
        history.refs = (*seal.kept, make_ref(seal, body, attempt))

    # --- reading back ---

    async def _read_back(self, current: Object | None, attempt: Attempt | None = None) -> bool:
        """Read the journal after a lost race: whether ``attempt`` is recorded. Raises if this session must stop."""
        found = current if current is not None else await self._store.find(self._key)
        if found is None:
            raise self._stop("its journal is gone")
        parsed = parse_journal(found)
        if parsed.session > self.session:
            raise self._stop(f"session {parsed.session} has started")
        known = {ref: self.history.lines[ref.first : ref.end] for ref in self.history.refs}
        history = await read_history(self._store, self.run_id, found=found, known=known)
        if history is None:
            raise self._stop("its journal is gone")
        if reason := superseded(history.state, self.session, self.writer):
            raise self._stop(reason)
        if reason := damaged(history.state, self.session, len(self.history.entries)):
            raise Corrupt(f"{self._key}: {reason}", remedy="find out what replaced the journal by older bytes")
        landed = attempt is not None and attempt.is_in(history.entries)
        self.history = history
        last = attempt.entries[-1].offset if attempt is not None and landed else -1
        if history.state.finished and last < len(history.entries) - 1:
            ended = self._stop(f"another process has ended the run: it is {history.state.status}")
            if not landed:
                raise ended
        return landed

    def _known_version(self) -> Version:
        if self.history.version is None:
            raise Invalid(f"run {self.run_id}: the session has not begun")
        return self.history.version

    def _stop(self, reason: str) -> Fenced:
        self._stopped = Fenced(f"run {self.run_id}: session {self.session} must stop: {reason}")
        return self._stopped

    def _overtaken(self) -> Conflict:
        return Conflict(f"run {self.run_id}: others kept writing to the journal of session {self.session}")


def _unknown(run_id: str, error: Unavailable) -> Ambiguous:
    return Ambiguous(f"run {run_id}: the entries may or may not be recorded ({error})")
