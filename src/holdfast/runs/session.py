"""One call of one run: read, plan, open a session, let the workflow's code run, record how it ended.

The journal decides; the index is told afterwards. A failure to write the journal is never recorded as a failure of the
workflow: it leaves as it is, and the next session goes on from what was recorded.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.base import telemetry
from holdfast.base.clock import iso
from holdfast.base.errors import Conflict, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Store
from holdfast.runs import mailbox
from holdfast.runs.context import Context, Continued, Suspended
from holdfast.runs.entry import Draft
from holdfast.runs.errors import Cancelled
from holdfast.runs.index import RunIndex
from holdfast.runs.journal import History, Journal, read_history
from holdfast.runs.outcome import Outcome
from holdfast.runs.plan import Answer, CheckChild, CheckMail, Identity, Open, Plan, plan_call
from holdfast.runs.recorded import Packed, unpack
from holdfast.runs.replay import Replay
from holdfast.runs.run import RunState

if TYPE_CHECKING:
    from holdfast.runs.workflow import Workflow

Planner = Callable[[RunState | None, int], Plan]

TAKEOVER = RetryPolicy(attempts=20, base_ms=5, max_ms=250, deadline_ms=30_000)
"""How long a call keeps trying to open a session against others that do the same."""

log = telemetry.logger("runs")


async def call(workflow: "Workflow", store: Store, ambient: Ambient, who: Identity, planner: Planner) -> Outcome:
    budget = TAKEOVER.start(ambient)
    while True:
        history = await read_history(store, who.run_id)
        plan = await _resolve(store, ambient, who, history, planner(_state(history), ambient.clock.wall_ns()))
        if isinstance(plan, Answer):
            return await answer(store, who.run_id, history)
        start = plan.start
        if history is None and who.input is not None:
            start = {**start, **await who.input.fields("input", store, ambient, who.run_id)}
        try:
            journal = await Journal.begin(store, ambient, who.run_id, history, start, plan.then)
        except Conflict:
            if not await budget.another():
                raise
            continue
        return await _sessions(workflow, store, ambient, journal)


async def answer(store: Store, run_id: str, history: History | None) -> Outcome:
    """Where a run stands, from its journal alone."""
    state = _state(history)
    if state is None:
        raise NotFound(f"run {run_id} does not exist", remedy="check the id and the store")
    match state.status:
        case "success" if state.outcome is not None:
            result = await unpack(store, state.outcome)
            return Outcome(run_id, "success", result, session=state.session)
        case "failed" | "retrying":
            return Outcome(
                run_id, "failed", error=_error_text(state), wake_at_ns=state.retry_at_ns, session=state.session
            )
        case "cancelled":
            return Outcome(run_id, "cancelled", error=_error_text(state), session=state.session)
        case "suspended" | "sleeping" if state.pending is not None:
            wake_ns = state.pending.wake_at_ns
            status = "suspended" if wake_ns is None else "sleeping"
            return Outcome(run_id, status, event=state.pending.event, wake_at_ns=wake_ns, session=state.session)  # type: ignore[arg-type]  # two of the statuses
    return Outcome(run_id, "running", session=state.session)


async def _resolve(store: Store, ambient: Ambient, who: Identity, history: History | None, plan: Plan) -> Answer | Open:
    """Turn a plan that depends on other objects into one that does not."""
    match plan:
        case Answer() | Open():
            return plan
        case CheckMail(event):
            taken = mailbox.taken(history) if history is not None else set()
            mail = await mailbox.collect(store, who.run_id, event, taken)
            if mail is None:
                return Answer()
            fields = await Packed(mail.value).fields("value", store, ambient, who.run_id)
            return Open(_continuing(who), (Draft("resume", {"event": event, "mail": mail.id, **fields}),))
        case CheckChild(child_id):
            child = _state(await read_history(store, child_id))
            waiting = child is not None and isinstance(
                plan_call(child, Identity(child_id, ""), ambient.clock.wall_ns()), Answer | CheckMail | CheckChild
            )
            if waiting and child is not None and not child.finished:
                return Answer()
            return Open(_continuing(who), (Draft("resume", {"event": f"child:{child_id}"}),))


def _continuing(who: Identity) -> dict[str, Any]:
    version = {} if who.version is None else {"version": who.version}
    return {"workflow": who.workflow, **version}


async def _sessions(workflow: "Workflow", store: Store, ambient: Ambient, journal: Journal) -> Outcome:
    """Run the code; again with a fresh history for as long as it continues as new."""
    index = RunIndex(store, ambient)
    noting = asyncio.ensure_future(_note(index, journal))
    try:
        while True:
            with telemetry.span("holdfast.session", run_id=journal.run_id, session=journal.session):
                continued = await _session(workflow, store, ambient, journal)
            if continued is None:
                break
            packed = Packed({"args": list(continued.args_again), "kwargs": continued.kwargs_again}, "arguments")
            fields = await packed.fields("input", store, ambient, journal.run_id)
            await _continue(store, journal, {"workflow": workflow.name, "version": workflow.version, **fields})
    finally:
        await asyncio.gather(noting, return_exceptions=True)
    await _note(index, journal)
    return await answer(store, journal.run_id, journal.history)


async def _continue(store: Store, journal: Journal, start: dict[str, Any]) -> None:
    """Start the history over. Mail that was consumed goes; the latest ids stay, so that a late copy is not taken."""
    consumed = mailbox.consumed_keys(journal.history)
    start = {name: value for name, value in start.items() if value is not None}
    await journal.continue_as_new({**start, "mails": list(journal.state.mails)})
    await store.delete_many(consumed)


async def _session(workflow: "Workflow", store: Store, ambient: Ambient, journal: Journal) -> Continued | None:
    """One pass of the workflow's code over one history; how it ended is in the journal afterwards."""
    state = journal.state
    replay = Replay(journal.history.entries, state.cancelled_at)
    context = Context(store, ambient, journal, replay)
    given = await unpack(store, journal.history.entries[0], "input") or {}
    try:
        result = await workflow.function(context, *given.get("args", ()), **given.get("kwargs", {}))
        replay.check_complete()
        packed = Packed(result, f"result of workflow {workflow.name}")
        await context.finish(Draft("cancel" if state.cancelled_at is not None else "complete", {}), packed)
    except Suspended:
        return None
    except Continued as continued:
        return continued
    except Cancelled:
        await context.finish(Draft("cancel", {"reason": state.cancel_reason or "cancelled"}))
    except Exception as error:
        if context.broken is not None:
            raise context.broken from None
        if isinstance(error, Invalid | Incompatible):
            raise  # a mistake in the code, not an outcome of the run: mend it and call again
        await context.finish(Draft("error", _failure(workflow, ambient, state, error)))
    return None


def _failure(workflow: "Workflow", ambient: Ambient, state: RunState, error: Exception) -> dict[str, Any]:
    fields: dict[str, Any] = {"error": {"type": type(error).__name__, "message": str(error)}}
    failures = state.failures + 1
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if workflow.retry.again(failures, cause):
        delay_ns = int(workflow.retry.delay_ms(failures, ambient) * 1e6)
        fields["retryAt"] = iso(ambient.clock.wall_ns() + delay_ns)
    return fields


async def _note(index: RunIndex, journal: Journal) -> None:
    """Tell the derived index. It can be rebuilt, so a failure here must not fail the run; it is logged."""
    try:
        await index.note(journal.run_id, journal.state)
    except HoldfastError as error:
        log.warning("run %s: the index was not updated (%s); holdfast runs reindex mends it", journal.run_id, error)


def _state(history: History | None) -> RunState | None:
    return history.state if history is not None else None


def _error_text(state: RunState) -> str | None:
    if state.outcome is None:
        return None
    error = state.outcome.fields.get("error")
    if isinstance(error, dict):
        return f"{error.get('type', 'Error')}: {error.get('message', '')}"
    return str(error or state.outcome.fields.get("reason") or "") or None
