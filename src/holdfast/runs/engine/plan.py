"""What a call of a run should do, given the state of its journal. Pure: the session around it reads and writes.

A call answers from the journal (``Answer``), opens a session (``Open``), or is refused by an error. Taking over a
run that another process may still be working on is always allowed: fencing, not waiting, keeps it safe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.runs.errors import (
    InputMismatch,
    ParentMismatch,
    RunFinished,
    VersionMismatch,
    WrongEvent,
    WrongWorkflow,
    no_run,
)
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.payload import Packed
from holdfast.runs.journal.state import RunState
from holdfast.runs.layout import CHILD_EVENT


@dataclass(frozen=True, slots=True)
class Answer:
    """Nothing to do: the state is the answer."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a session: ``start`` with these fields, followed by these entries in the same write."""

    start: dict[str, Any]
    then: tuple[Draft, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckMail:
    """The run waits for an event: it can continue if there is mail for it."""

    event: str


@dataclass(frozen=True, slots=True)
class CheckChild:
    """The run waits for a child run: it can continue when that has made progress."""

    child_id: str


Plan = Answer | Open | CheckMail | CheckChild


@dataclass(frozen=True, slots=True)
class Identity:
    """What a caller expects of a run. ``input_hash`` is None if the caller continues an existing run."""

    run_id: str
    workflow: str
    version: str | None = None
    input_hash: str | None = None
    first: dict[str, Any] = field(default_factory=dict)
    """For the first ``start`` alone: metadata, tags, parent, ..."""
    input: Packed | None = None
    """What to write down as the run's input, if this call creates it."""
    drawn: bool = False
    """The id is random and new: no other caller can have created the run, so it need not be read first."""
    delivery: str | None = None
    """The id of the delivery that the call brings. If the run has consumed it, the call only continues the run."""

    def start(self) -> dict[str, Any]:
        """What every ``start`` of this caller says."""
        return {"workflow": self.workflow} | ({} if self.version is None else {"version": self.version})


def plan_call(state: RunState | None, who: Identity, now_ns: int) -> Plan:
    """A call that brings no event: a start, its redelivery, or a worker's call."""
    if state is None and who.input_hash is not None:
        return Open({**who.start(), **who.first})
    state = _checked(state, who)
    start = who.start()
    match state.status:
        case "success" | "failed" | "cancelled":
            return Answer()
        case "suspended" if state.pending is not None and state.pending.event.startswith(CHILD_EVENT):
            child_id = state.pending.event.removeprefix(CHILD_EVENT)
            if not child_id.startswith(f"{who.run_id}."):  # a fork in the wait for its source's child: it has its own
                return Open(start, (Draft("resume", {"event": state.pending.event}),))
            return CheckChild(child_id)
        case "suspended" if state.pending is not None:
            return CheckMail(state.pending.event)
        case "sleeping" if state.pending is not None:
            child = state.pending.event.startswith(CHILD_EVENT)
            of_source = child and not state.pending.event.startswith(f"{CHILD_EVENT}{who.run_id}.")
            due = of_source or (state.pending.wake_at_ns or 0) <= now_ns
            if not due:
                return Answer()
            if child:
                return Open(start, (Draft("resume", {"event": state.pending.event}),))
            return Open(start, (Draft("resume", {"event": state.pending.event, "value": None}),))
        case "retrying":
            return Open(start) if (state.retry_at_ns or 0) <= now_ns else Answer()
    return Open(start)


def plan_resume(state: RunState | None, who: Identity, event: str, value: dict[str, Any], now_ns: int) -> Plan:
    """A call that brings the answer to a wait. ``value`` holds the fields of the ``resume`` entry for it.

    The same answer again continues the run that it woke: the call that brought it first may have died. Without a
    key, an answer with the same value is the same answer, unless the run has asked for the event again: then it is
    unknown whether it is a second delivery of the first answer or the answer to the second question.
    """
    state = _checked(state, who)
    known = state.answers.get(event)
    again = known is not None and "mail" not in value and _same_answer({"event": event, **value}, known.fields)
    if state.pending is not None and state.pending.event == event:
        if again:
            raise WrongEvent(
                f"run {who.run_id} waits for event {event!r} again, and its answer before was the same: this may be "
                "another delivery of that one",
                remedy="give each delivery a key: resume(..., key=...)",
            )
        return Open(who.start(), (Draft("resume", {"event": event, **value}),))
    if state.finished:
        raise RunFinished(f"run {who.run_id} is {state.status}: it takes no event {event!r}")
    if again:
        return plan_call(state, who, now_ns)
    waits = f"it waits for {state.pending.event!r}" if state.pending is not None else "it waits for nothing"
    raise WrongEvent(
        f"run {who.run_id} does not wait for event {event!r}: {waits}",
        remedy="deliver the event with runs.deliver if the run will ask for it later",
    )


def plan_cancel(state: RunState | None, who: Identity, reason: str, now_ns: int) -> Plan:
    """A run that is being cancelled already continues with that: a second request must not disturb its clean-up."""
    state = _checked(state, who)
    if state.finished or state.cancelled_at is not None:
        return plan_call(state, who, now_ns)
    return Open({**who.start(), "cancelling": True, "reason": reason})


def plan_retry(state: RunState | None, who: Identity) -> Plan:
    """Open a failed run again: recorded steps stay, the rest is tried once more."""
    state = _checked(state, who)
    if state.status in ("success", "cancelled"):
        raise RunFinished(f"run {who.run_id} is {state.status}: there is nothing to try again")
    return Open({**who.start(), "reopen": True})


def _checked(state: RunState | None, who: Identity) -> RunState:
    """Before any step: raise if there is no such run, it has another workflow, input or version, or was deleted."""
    if state is None:
        raise no_run(who.run_id)
    if state.status == "deleted":
        raise RunFinished(f"run {who.run_id} was deleted", remedy="use another run id")
    if who.input_hash is not None:
        _check_parent(state, who)
    if who.workflow and state.workflow and who.workflow != state.workflow:
        raise WrongWorkflow(
            f"run {who.run_id} is a run of workflow {state.workflow!r}, not of {who.workflow!r}",
            remedy="call the workflow that started it, or use another run id",
        )
    if who.input_hash is not None and state.input_hashes and who.input_hash not in state.input_hashes:
        raise InputMismatch(
            f"run {who.run_id} exists with another input",
            remedy="use another run id, or the input that it was started with",
        )
    if who.workflow and state.version not in (None, who.version) and not state.finished:
        ours = f"version {who.version}" if who.version is not None else "without a version"
        raise VersionMismatch(
            f"run {who.run_id} was started by version {state.version} of {who.workflow}, and this is {ours}",
            remedy=f"finish it with version {state.version}, or fork it",
        )
    return state


def _check_parent(state: RunState, who: Identity) -> None:
    """A child's id is ``{parent}.{step}``, which may be an unrelated run too: compare the recorded parents."""
    there, meant = state.start.get("parent"), who.first.get("parent")
    if there == meant or state.source is not None:  # a fork of a child has the child's first line
        return
    remedy = "use run ids without a dot, or another id for one of the two"
    if meant is None:
        raise ParentMismatch(
            f"run {who.run_id} is the child of run {_named(there)}, and cannot be started by itself", remedy=remedy
        )
    whose = f"is the child of run {_named(there)}" if there is not None else "was not started by a parent"
    raise ParentMismatch(
        f"run {who.run_id} cannot be the child of run {_named(meant)}: a run of that id {whose}", remedy=remedy
    )


def _named(parent: object) -> str:
    return f"{parent.get('runId')}, step {parent.get('stepId')}" if isinstance(parent, Mapping) else repr(parent)


def _same_answer(given: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """A large value has another key at each delivery; compare its length and hash."""
    given, recorded = ({**fields, "payload": _content(fields.get("payload"))} for fields in (given, recorded))
    return given.items() <= recorded.items()


def _content(payload: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
    return None if payload is None else (payload.get("sha256"), payload.get("bytes"), payload.get("encoding"))
