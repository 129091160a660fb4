"""Context: the first argument of a workflow. Every method returns the recorded result, or does the work and records it.

Rules: the result recorded is the one returned; a recorded step never runs again; a step's failure is recorded
together with whatever comes after it (see design 0010). Suspending leaves the workflow by an exception that is not
an ``Exception``.
"""

import asyncio
import hashlib
import inspect
import itertools
import math
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from holdfast.base import aio, telemetry
from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.runs.engine import children
from holdfast.runs.engine.calls import ONCE, Call, Retry, check_number, current_key
from holdfast.runs.engine.gate import Continued, Question, SessionGate, Suspended
from holdfast.runs.engine.outbox import Outbox
from holdfast.runs.engine.replay import (
    GROUP,
    Place,
    Replay,
    StepIds,
    check_members,
    counted,
    keyed,
)
from holdfast.runs.errors import Cancelled, ReplayMismatch, StepFailed
from holdfast.runs.journal.entry import Draft, Entry
from holdfast.runs.journal.history import PARALLEL_READS
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.mailbox import Inbox
from holdfast.runs.journal.payload import Packed, unpack
from holdfast.runs.layout import CHILD_EVENT, check_event, check_name
from holdfast.runs.values import to_json

if TYPE_CHECKING:
    from holdfast.runs.engine.workflow import Workflow


TaskOrNone = asyncio.Task[Any] | None


class Deferred:
    """Drafts that are recorded together with the next entry of the task that made them."""

    def __init__(self) -> None:
        self._kept: list[tuple[TaskOrNone, Draft]] = []

    def keep(self, draft: Draft) -> None:
        self._kept.append((asyncio.current_task(), draft))

    def take(self, *tasks: TaskOrNone) -> list[Draft]:
        """Remove and return the drafts of these tasks, in order; without arguments, all drafts."""
        if not self._kept:
            return []
        due = [draft for task, draft in self._kept if not tasks or task in tasks]
        self._kept = [(task, draft) for task, draft in self._kept if tasks and task not in tasks]
        return due

    def due(self, main: TaskOrNone) -> list[Draft]:
        """The drafts that go with the next entry of this task: its own, or all if it is the main one."""
        if not self._kept:
            return []
        task = asyncio.current_task()
        return self.take() if task is main else self.take(task)

    def hand_over(self, tasks: Container[TaskOrNone]) -> None:
        """Make this task the owner of the drafts of ``tasks``."""
        mine = asyncio.current_task()
        self._kept = [(mine if task in tasks else task, draft) for task, draft in self._kept]

    def drop(self) -> None:
        self._kept.clear()


_owners: WeakKeyDictionary[asyncio.Task[Any], object] = WeakKeyDictionary()
"""The token of the session that a task belongs to, as far as it is known."""


class Context:
    def __init__(self, store: Store, ambient: Ambient, journal: Journal, replay: Replay) -> None:
        self._store = store
        self._ambient = ambient
        self._journal = journal
        self.run_id = journal.run_id
        self._replay = replay
        self._token = object()
        self.main: TaskOrNone = None
        """The workflow's own task."""
        self._ids = StepIds()
        self._deferred = Deferred()
        self._cancelled_tasks: set[TaskOrNone] = set()
        self._recording: set[TaskOrNone] = set()
        """Tasks whose step has returned and is being recorded."""
        self._older: WeakSet[asyncio.Task[Any]] = WeakSet()
        """Tasks that existed before the workflow's code ran, so that none of them is its own."""
        self._inbox = Inbox(store, journal.history)
        self.gate = SessionGate()
        self.post = Outbox(journal.history.entries)

    def enter(self) -> None:
        """Called in the workflow's own task before its code runs."""
        self.main = task = asyncio.current_task()
        if task is not None:
            _owners[task] = self._token
        if self._replay.has_aside():
            self._older = WeakSet(asyncio.all_tasks())

    @property
    def session(self) -> int:
        return self._journal.session

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._journal.state.metadata

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self._journal.state.tags)

    @property
    def key(self) -> str:
        """The idempotency key of the step that is running: the same for every attempt, in every session."""
        key = current_key()
        if key is None:
            raise Invalid("ctx.key was read outside a step", remedy="read it inside the function that the step runs")
        return key

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        key: str | int | None = None,
        retry: Retry = ONCE,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run ``function`` once for this run and remember what it returned. Sync functions run in a thread."""
        with self._question(f"step {name!r}") as main:
            check_name(name)
            ident = self._identify(name, key, main=main)
            call = Call(function, args, kwargs, retry, timeout)
            return await self._answer(name, ident, call, lane=None if main else "task")

    def emit(self, event: Any, **options: Any) -> None:
        """Publish an event with the step that is running: if and when that is recorded, once."""
        self.post.emit(event, self.key, self._draw_unique, options)

    async def parallel(
        self,
        group: str,
        calls: Mapping[str, tuple[Any, ...]] | Iterable[tuple[Any, ...]],
        *,
        limit: int = 8,
        retry: Retry = ONCE,
        timeout: float | None = None,
    ) -> Any:
        """Run many calls at once, at most ``limit`` at a time; each is a step of its own, ``group[key]``.

        A mapping gives a dictionary with the same keys, a sequence gives a list. The first failure stops the rest.
        """
        with self._question(f"group {group!r}") as main:
            check_name(group, "group")
            named = dict(calls) if isinstance(calls, Mapping) else {str(n): call for n, call in enumerate(calls)}
            members = {member: Call.of_group(group, member, call, retry, timeout) for member, call in named.items()}
            check_number("limit", limit, least=1, whole=True)
            ident = self._identify(group, None, main=main)
            steps = {keyed(ident, member): call for member, call in members.items()}
            for member in named:
                self._ids.claim(keyed(ident, member))
            try:
                results = await self._answer_group(group, ident, steps, limit)
            finally:
                self._ids.done(ident)
            return dict(zip(named, results, strict=True)) if isinstance(calls, Mapping) else results

    async def suspend(self, event: str, **data: Any) -> Any:
        """Wait for an event from outside; its value. The process may exit meanwhile."""
        with self._question(f"the wait for {event!r}"):
            check_event(event)
            ident = self._wait_ident(event)
            fields = {"event": event, "stepId": ident}
            if data:
                fields["data"] = to_json(data, f"data of event {event}")
            return await self._wait(ident, fields, None)

    async def sleep(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        until: datetime | None = None,
    ) -> None:
        """Wait for a time, with no process needed while it passes."""
        with self._question("the sleep"):
            ident = self._wait_ident("sleep")
            for unit, number in (("days", days), ("hours", hours), ("minutes", minutes), ("seconds", seconds)):
                check_number(unit, number, least=-math.inf)
            if until is not None and not isinstance(until, datetime):
                raise Invalid(f"until={until!r:.80} is not a datetime", remedy="use datetime(..., tzinfo=UTC)")
            span_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
            wake_ns, wake_at = _wake_time(self._ambient.clock.wall_ns(), span_s, until)
            await self._wait(ident, {"event": "sleep", "stepId": ident, "wakeAt": wake_at}, wake_ns)

    async def run(self, child: "Workflow", *args: Any, key: str | int | None = None, **kwargs: Any) -> Any:
        """Run another workflow as a child run with a journal of its own; its result."""
        if not hasattr(child, "function"):
            raise Invalid(f"ctx.run was given {child!r:.80}, not a workflow", remedy="decorate it with @runs.workflow")
        with self._question(f"child run {child.name!r}") as main:
            if not main:
                raise Invalid(
                    f"ctx.run({child.name}) was called from another task", remedy="await it in the workflow itself"
                )
            ident = self._identify(child.name, key, main=True)
            parent = {"runId": self.run_id, "stepId": ident}
            try:
                return await self._run_child(child, parent, args, kwargs)
            except Cancelled:
                await children.stop(child, self._store, self._ambient, parent)
                raise
            finally:
                self._ids.done(ident)

    async def now(self) -> datetime:
        """The time, recorded: the same on every replay."""
        return datetime.fromisoformat(await self._note("now", lambda _: iso(self._ambient.clock.wall_ns())))

    async def unique(self) -> str:
        """A random id, recorded: the same on every replay."""
        return str(await self._note("unique", self._draw_unique))

    def continue_as_new(self, *args: Any, **kwargs: Any) -> None:
        """Go on under the same run id with new arguments and an empty history, for loops that never end."""
        with self._question("continue_as_new"):
            if self._replay.cancel_noticed:
                raise Invalid("a run that is being cancelled cannot continue as new", remedy="let runs.Cancelled go on")
            raise self.gate.leave(Continued(args, kwargs))

    async def _answer(self, name: str, ident: str, call: Call, lane: str | None) -> Any:
        """A step's recorded answer; or run it, and record that. ``lane`` is None in the workflow's own task."""
        try:
            place = self._place("step", ident) if lane is None else None
            entry = self._aside(ident) if lane is not None else place.entries[0] if place is not None else None
            if entry is not None:
                return await unpack(self._store, entry)
            marks = {"stepId": ident, "name": name} if lane is None else {"stepId": ident, "name": name, "lane": lane}
            with telemetry.span("holdfast.step", run_id=self.run_id, step_id=ident, session=self._journal.session):
                try:
                    value, outbox = await call.attempt(f"{self.run_id}/{ident}", self._ambient)
                except Exception as error:
                    failure = StepFailed(ident, type(error).__name__, str(error))
                    self._deferred.keep(Draft("step", {**marks, **_failure_fields(failure)}))
                    raise failure from error
                task = asyncio.current_task()
                self._recording.add(task)
                try:
                    return await self._write_step({**marks, **outbox}, value)
                finally:
                    self._recording.discard(task)
        finally:
            self._ids.done(ident)

    def _aside(self, ident: str) -> Entry | None:
        if (task := asyncio.current_task()) is not None:
            _owners[task] = self._token
        entry = self._replay.ask_aside(ident)
        if entry is None:
            self._cancel_aside()
            self._release(self.main)
            self.gate.check()
        return entry

    async def _answer_group(self, group: str, ident: str, steps: Mapping[str, Call], limit: int) -> list[Any]:
        """The results of a group, in order. An empty one leaves no trace."""
        main = self._is_main()
        place = self._place("group", ident) if main and steps else None
        if place is not None:
            check_members(place, steps)
            if self._replay.has_more() or any("error" in entry.fields for entry in place.entries):
                # The workflow has gone on from this group: members that a failure stopped must not run again.
                entries = {step: self._replay.ask_aside(step) for step in steps}
                return await _unpack_group(self._store, ident, entries)
        if main:
            self._release()
        lane = f"{GROUP}{ident}" if main else "task"

        members = [partial(self._answer, group, step, call, lane) for step, call in steps.items()]
        return await self._run_members(members, limit)

    async def _run_members(self, members: Sequence[Callable[[], Awaitable[Any]]], limit: int) -> list[Any]:
        """The results of a group's members, at most ``limit`` at a time. The first failure cancels those whose function
        is still running; those whose function has returned are recorded before the failure is raised.
        """
        places = asyncio.Semaphore(limit)
        failures: list[BaseException] = []

        async def work(member: Callable[[], Awaitable[Any]]) -> Any:
            try:
                async with places:
                    return await member()
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    failures.append(error)
                raise

        tasks = [asyncio.ensure_future(work(member)) for member in members]
        try:
            if tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                await self._stop_unrecorded(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._deferred.hand_over({*tasks})
        if failures:
            raise failures[0]
        return [task.result() for task in tasks]

    async def _stop_unrecorded(self, tasks: Sequence[asyncio.Future[Any]]) -> None:
        """Cancel the tasks whose function is still running, and wait until the results of the others are recorded."""
        await asyncio.sleep(0)  # a function that has returned must reach the point where its result is recorded
        for task in tasks:
            if task not in self._recording:
                task.cancel()
        if recording := [task for task in tasks if not task.done() and task in self._recording]:
            await asyncio.wait(recording)

    def _place(self, kind: str, ident: str) -> Place | None:
        """The main lane's recorded answer. A pending cancellation raises ``Cancelled`` once, at the first call that is
        not recorded.
        """
        place = self._replay.ask(kind, ident)
        if place is None and self._replay.cancel_pending:
            self._cancel_main()
            place = self._replay.ask(kind, ident)
        replay = self._replay
        if place is None and replay.has_aside() and not replay.cancel_noticed and not self._may_be_asked_aside():
            replay.check_aside()
        return place

    def _may_be_asked_aside(self) -> bool:
        """Whether a task is alive that may still ask for what other tasks have recorded: any that began after the
        workflow's code, unless it is known to belong to another session or only closes a generator.
        """
        return any(
            task is not self.main
            and task not in self._older
            and _owners.get(task, self._token) is self._token
            and inspect.iscoroutine(task.get_coro())
            for task in asyncio.all_tasks()
        )

    def _cancel_main(self) -> None:
        """Raise a pending cancellation in the workflow's own task, once; what the code does afterwards is clean-up."""
        if self._replay.cancel_pending:
            self._replay.cancel_pending = False
            if not self._cancelled_tasks:
                self._replay.cancel_noticed = True
                raise Cancelled

    def _cancel_aside(self) -> None:
        """Raise a pending cancellation in other tasks, once in each, until one of them has ended: what follows is
        clean-up.
        """
        task = asyncio.current_task()
        known = any(other is not None and other.done() for other in self._cancelled_tasks)
        if self._replay.cancel_pending and task not in self._cancelled_tasks and not known:
            self._cancelled_tasks.add(task)
            self._replay.cancel_noticed = True
            raise Cancelled

    async def _write_step(self, marks: dict[str, Any], value: Any) -> Any:
        """Record a step's result, and return what a replay will return."""
        packed = Packed(value, f"result of step {marks['stepId']}")
        value = packed.read_back()
        await self._append(Draft("step", {**marks, **await self._fields("result", packed)}))
        return value

    async def _run_child(
        self, child: "Workflow", parent: dict[str, str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """The child's result, after any number of waits for it."""
        ident = parent["stepId"]
        link = {"stepId": ident, "name": child.name, "child": children.child_id(parent)}
        for number in itertools.count(1):
            wait = counted(f"child {ident}", number)
            fields: dict[str, Any] = {"event": f"{CHILD_EVENT}{link['child']}", "stepId": wait}
            if self._replay.comes_next("wait", wait):
                await self._wait(wait, fields, None)
                continue
            place = self._place("step", ident)
            if place is not None:
                return await unpack(self._store, place.entries[0])
            await self._append()  # what came before a child is recorded before it begins: see ``children``
            outcome = await children.call(child, self._store, parent, args, kwargs)
            if outcome.status == "success":
                return await self._write_step(link, outcome.result)
            if outcome.finished:
                failure = StepFailed(ident, outcome.status, outcome.error or "the child run was cancelled")
                self._deferred.keep(Draft("step", {**link, **_failure_fields(failure)}))
                raise failure
            if outcome.wake_at_ns is not None:
                fields["wakeAt"] = iso(outcome.wake_at_ns)
            await self._wait(wait, fields, outcome.wake_at_ns)
        return None

    async def _wait(self, ident: str, fields: dict[str, Any], wake_ns: int | None) -> Any:
        """Answer a wait from the journal or the mailbox, or leave the workflow until there is an answer."""
        self._ids.done(ident)
        event = str(fields["event"])
        place = self._place("wait", ident)
        if place is None:
            await self._append(Draft("suspend", fields))
        elif len(place.entries) > 1:
            return await unpack(self._store, place.entries[1], "value")
        else:
            self._cancel_main()
            wake_ns = _wake_of(place.entries[0])
        if wake_ns is not None and wake_ns <= self._ambient.clock.wall_ns():
            await self._append(Draft("resume", {"event": event, "value": None}))
            return None
        if wake_ns is None and not event.startswith(CHILD_EVENT):
            mail = await self._inbox.collect(event)
            if mail is not None:
                packed = Packed(mail.value, f"value of event {event}")
                value = packed.read_back()
                answer = {"event": event, "mail": mail.id, **await self._fields("value", packed)}
                await self._append(Draft("resume", answer))
                return value
        raise self.gate.leave(Suspended(event, wake_ns))

    async def _note(self, name: str, draw: Callable[[str], str]) -> Any:
        """A small generated value (time, id): recorded with the next entry, without a request of its own."""
        with self._question(f"ctx.{name}()") as main:
            if not main:
                raise Invalid(f"ctx.{name}() was called from another task", remedy="call it in the workflow itself")
            ident = self._identify(name, None, main=True)
            self._ids.done(ident)
            place = self._place("step", ident)
            if place is not None:
                return await unpack(self._store, place.entries[0])
            value = draw(ident)
            self._deferred.keep(Draft("step", {"stepId": ident, "name": name, "result": value}))
            return value

    def _draw_unique(self, ident: str) -> str:
        """An id derived from the first line, which has a random writer: a session that dies before the id is recorded,
        and the next one, derive the same id.
        """
        seed = self._journal.history.lines[0] + f"{self.run_id}/{ident}".encode()
        return hashlib.sha256(seed).hexdigest()[:32]

    async def finish(self, draft: Draft, packed: Packed | None = None) -> None:
        """Record how the session ends. What was deferred goes with it, unless the workflow failed because of it."""
        if draft.type == "error":
            self._deferred.drop()
        if packed is not None:
            packed.read_back()
        fields = await self._fields("result", packed) if packed is not None else {}
        await self._append(Draft(draft.type, {**draft.fields, **fields}))

    def _release(self, *tasks: TaskOrNone) -> None:
        """The workflow continues in other tasks: what was deferred comes before anything that they record."""
        if due := self._deferred.take(*tasks):
            self._journal.hold(*due)

    async def _append(self, *drafts: Draft) -> None:
        due = self._deferred.due(self.main)
        try:
            if self.post.note(await self._journal.append(*due, *map(self.post.marked, drafts))):
                await self.post.send()
        except BaseException as error:
            self.gate.not_recorded(error)
            raise

    async def _fields(self, field: str, packed: Packed) -> dict[str, Any]:
        try:
            return await packed.fields(field, self._store, self._ambient, self.run_id)
        except BaseException as error:
            self.gate.not_recorded(error)
            raise

    def _question(self, what: str) -> Question:
        return Question(self.gate, what, self.main)

    def _identify(self, name: str, key: str | int | None, *, main: bool) -> str:
        if current_key() is not None:
            raise Invalid(f"{name!r} was asked for inside a step", remedy="return from the step first")
        return self._ids.draw(name, key, aside=not main)

    def _wait_ident(self, event: str) -> str:
        if not self._is_main():
            raise Invalid(f"the wait for {event!r} was asked for by another task", remedy="wait in the workflow itself")
        return self._identify(event, None, main=True)

    def _is_main(self) -> bool:
        return asyncio.current_task() is self.main


def _failure_fields(error: StepFailed) -> dict[str, Any]:
    """The fields of a step that failed for good."""
    return {"error": {"type": error.error_type, "message": error.message}}


async def _unpack_group(store: Store, group: str, entries: Mapping[str, Entry | None]) -> list[Any]:
    """The values of a parallel group that the workflow has gone on from, in order. The failure that came first, which
    stopped the group, is raised.
    """
    failed = [entry for entry in entries.values() if entry is not None and "error" in entry.fields]
    if failed:
        await unpack(store, min(failed, key=lambda entry: entry.offset))

    async def one(item: tuple[str, Entry | None]) -> Any:
        step, entry = item
        if entry is None:
            raise ReplayMismatch(
                f"the journal has no step {step!r}, and the group {group!r} was over when it was recorded",
                remedy="restore the code, give the workflow a new version, or fork the run before that group",
            )
        return await unpack(store, entry)

    return await aio.map_bounded(entries.items(), one, limit=PARALLEL_READS)


def _wake_time(now_ns: int, span_s: float, until: datetime | None) -> tuple[int, str]:
    """When a sleep ends, as a number and as it is written."""
    if until is not None and until.tzinfo is None:
        raise Invalid("sleep(until=...) needs a time zone", remedy="use datetime(..., tzinfo=UTC)")
    try:
        wake_ns = now_ns + round(span_s * 1e6) * 1000 if until is None else parse_iso(until.isoformat())
        return wake_ns, iso(wake_ns)
    except (ValueError, OverflowError) as error:
        raise Invalid(
            f"a sleep of {span_s} seconds ends at no time that can be written", remedy="sleep less"
        ) from error


def _wake_of(suspend: Entry) -> int | None:
    """When the wait that this entry begins ends; None if it is for an event."""
    wake = suspend.fields.get("wakeAt")
    return parse_iso(wake) if wake else None
