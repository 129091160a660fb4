"""One call of one run: read, plan, open a session, let the workflow's code run, record how it ended.

The journal decides; the index is updated afterwards. A failure to write the journal is never recorded as a failure of
the workflow: it leaves as it is, and the next session continues from what was recorded.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.base import telemetry
from holdfast.base.clock import iso
from holdfast.base.errors import Conflict, HoldfastError, Incompatible, Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.runs import layout
from holdfast.runs.engine.calls import Outcome, error_text, outside_steps
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.gate import Continued, Suspended
from holdfast.runs.engine.plan import Answer, CheckChild, CheckMail, Identity, Open, Plan, plan_call
from holdfast.runs.engine.replay import Replay
from holdfast.runs.errors import Cancelled, VersionMismatch, explained, no_run, recorded_error
from holdfast.runs.journal import mailbox
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.index import BLOCKING, RunIndex, leave_mark
from holdfast.runs.journal.journal import TAKEOVER, Journal
from holdfast.runs.journal.leftovers import may_need_tidying, tidy
from holdfast.runs.journal.payload import Packed, unpack
from holdfast.runs.journal.state import RunState

if TYPE_CHECKING:
    from holdfast.runs.engine.workflow import Workflow


Planner = Callable[[RunState | None, int], Plan]
"""From the state of a run, and the time."""

log = telemetry.logger("runs")


async def call(workflow: "Workflow", store: Store, ambient: Ambient, who: Identity, planner: Planner) -> Outcome:
    budget = TAKEOVER.start(ambient)
    index = RunIndex(store, ambient)
    while True:
        history = None if who.drawn and not budget.spent else await read_history(store, who.run_id)
        if history is not None and budget.spent:
            await _aside(index.withdraw(who.run_id, history.state), f"run {who.run_id}: a key was not removed")
        state, now_ns = history.state if history is not None else None, ambient.clock.wall_ns()
        try:
            if history is not None and who.delivery in mailbox.taken(history):
                planned = plan_call(state, who, now_ns)  # the call that brought this delivery first may have died
            else:
                planned = planner(state, now_ns)
        except HoldfastError as error:
            if history is not None and isinstance(error, VersionMismatch):
                await _leave_mark(store, ambient, who.run_id, history.state, error)
            raise
        plan = await _resolve(store, ambient, who, history, planned)
        if isinstance(plan, Answer):
            return await answer(store, who.run_id, history)
        start = plan.start
        if who.input is not None and (history is None or not history.state.input_hashes):
            # A journal of another program's making has no input that we could read: the caller's is written down.
            given = await who.input.fields("input", store, ambient, who.run_id)
            start = {**start, "inputHash": who.input_hash, **given}
        try:
            journal = await Journal.begin(store, ambient, who.run_id, history, start, plan.then, announce=index.note)
        except Conflict:
            if not await budget.another():
                raise
            continue
        return await _sessions(workflow, store, ambient, journal, index)


async def answer(store: Store, run_id: str, history: History | None) -> Outcome:
    """The state of a run, from its journal alone."""
    if history is None:
        raise no_run(run_id)
    state = history.state
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
    """Replace a plan that depends on other objects (mail, a child) by one that does not."""
    match plan:
        case Answer() | Open():
            return plan
        case CheckMail(event):
            mail = await mailbox.Inbox(store, history).collect(event) if history is not None else None
            if mail is None:
                return Answer()
            fields = await Packed(mail.value).fields("value", store, ambient, who.run_id)
            return Open(who.start(), (Draft("resume", {"event": event, "mail": mail.id, **fields}),))
        case CheckChild(child_id):
            child = await read_history(store, child_id)
            if child is not None and not child.state.finished:
                plan = plan_call(child.state, Identity(child_id, ""), ambient.clock.wall_ns())
                if isinstance(plan, Answer | CheckMail | CheckChild):
                    return Answer()
            return Open(who.start(), (Draft("resume", {"event": f"{layout.CHILD_EVENT}{child_id}"}),))


async def _sessions(workflow: "Workflow", store: Store, ambient: Ambient, journal: Journal, index: RunIndex) -> Outcome:
    """Run the code; again with a fresh history for as long as it continues as new."""
    noting = asyncio.ensure_future(index.try_note(journal.run_id, journal.state))
    try:
        while True:
            with telemetry.span("holdfast.session", run_id=journal.run_id, session=journal.session):
                continued = await _session(workflow, store, ambient, journal)
            if continued is None:
                break
            packed = Packed({"args": list(continued.args_again), "kwargs": continued.kwargs_again}, "arguments")
            fields = await packed.fields("input", store, ambient, journal.run_id)
            await _continue(store, journal, {"workflow": workflow.name, "version": workflow.version, **fields})
    except BLOCKING as error:
        await asyncio.gather(noting, return_exceptions=True)  # the key of this session goes first: a mark is newer
        await _leave_mark(store, ambient, journal.run_id, journal.state, error)
        raise
    finally:
        await journal.close()
        await asyncio.gather(noting, return_exceptions=True)
    after = [index.try_note(journal.run_id, journal.state)]
    if may_need_tidying(journal.history):
        left = f"run {journal.run_id}: segments that were merged are still there"
        after.append(_aside(tidy(store, journal.run_id), left))
    await asyncio.gather(*after)
    return await answer(store, journal.run_id, journal.history)


async def _continue(store: Store, journal: Journal, start: dict[str, Any]) -> None:
    """Start an empty history. Consumed mail is deleted first, while the history still names it; the latest ids are
    carried over, so that a second delivery is recognised.
    """
    await store.delete_many(mailbox.consumed_keys(journal.history))
    start = {name: value for name, value in start.items() if value is not None}
    await journal.continue_as_new({**start, "mails": list(journal.state.mails)})


async def _session(workflow: "Workflow", store: Store, ambient: Ambient, journal: Journal) -> Continued | None:
    """One pass of the workflow's code over one history; how it ended is in the journal afterwards."""
    state = journal.state
    replay = Replay(journal.history.entries, state.cancelled_at, key=layout.journal_key(journal.run_id))
    context = Context(store, ambient, journal, replay)
    args, kwargs = await _input(store, journal.history)
    check_arguments(workflow, args, kwargs)
    await context.post.send()
    try:
        result = await _perform(workflow, context, args, kwargs)
        if context.gate.broken is not None:
            raise context.gate.broken
        if context.gate.left is not None:  # the code caught what should have left it
            raise context.gate.left
        replay.check_complete()
        packed = Packed(result, f"result of workflow {workflow.name}")
        # A workflow that had nothing left to do never noticed that it was cancelled: it has not cleaned up, it is done.
        await context.finish(Draft("cancel" if replay.cancel_noticed else "complete", {}), packed)
    except BaseException as error:
        cause = what_counts(error)
        if isinstance(cause, Suspended):
            return None
        if isinstance(cause, Continued):
            await context.post.send()
            return cause
        if context.gate.broken is not None and isinstance(cause, Exception):
            raise context.gate.broken from None
        if isinstance(cause, Cancelled):
            await context.finish(Draft("cancel", {"reason": state.cancel_reason or "cancelled"}))
        elif isinstance(cause, Invalid | Incompatible):
            raise cause  # noqa: B904  # a mistake in the code, not an outcome of the run: the corrected code continues
        elif isinstance(cause, Exception):
            log.warning("run %s failed: %s", journal.run_id, error_text(cause), exc_info=cause)
            await context.finish(Draft("error", _failure(workflow, ambient, state, cause)))
        else:
            raise
    return None


def check_arguments(workflow: "Workflow", args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """``Invalid`` for arguments that the function does not take, before they use up a run id or end a run."""
    try:
        inspect.signature(workflow.function).bind(None, *args, **kwargs)
    except TypeError as error:
        raise Invalid(
            f"workflow {workflow.name} cannot be started like that: {error}", remedy="call start with the run's input"
        ) from error


async def _perform(workflow: "Workflow", context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the code in a task of its own, to distinguish a cancelled call from a cancelled await inside the code."""

    async def perform() -> Any:
        context.enter()
        with outside_steps():
            return await workflow.function(context, *args, **kwargs)

    working = asyncio.ensure_future(perform())
    try:
        await asyncio.wait({working})
        if working.cancelled():
            raise RuntimeError("something that the workflow waited for was cancelled")
        return working.result()
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        await context.gate.close()


def what_counts(error: BaseException) -> BaseException:
    """The error that decides, of an exception group: first what ends the session, then a cancellation, then a mistake
    in the code.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [what_counts(each) for each in error.exceptions]
    for kinds in ((Suspended, Continued), (Cancelled,), (Invalid, Incompatible)):
        for leaf in leaves:
            if isinstance(leaf, kinds):
                return leaf
    return leaves[0] if isinstance(error, Exception) else error


async def _input(store: Store, history: History) -> tuple[list[Any], dict[str, Any]]:
    """What the workflow is called with: written in the first ``start``, or in the first of ours."""
    first = next((entry for entry in history.entries if "inputHash" in entry.fields), history.entries[0])
    given = await unpack(store, first, "input")
    if not isinstance(given, dict) or not given.keys() <= {"args", "kwargs"}:
        return [], {}
    return list(given.get("args", ())), given.get("kwargs", {})


def _failure(workflow: "Workflow", ambient: Ambient, state: RunState, error: Exception) -> dict[str, Any]:
    fields: dict[str, Any] = {"error": {"type": type(error).__name__, "message": str(error)}}
    failures = state.failures + 1
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if workflow.retry.again(failures, cause):
        delay_ns = int(workflow.retry.delay_ms(failures, ambient) * 1e6)
        fields["retryAt"] = iso(ambient.clock.wall_ns() + delay_ns)
    return fields


async def _leave_mark(store: Store, ambient: Ambient, run_id: str, state: RunState, error: HoldfastError) -> None:
    """Show the error of this call to people who look at the run."""
    await _aside(
        leave_mark(store, ambient, run_id, state, error), f"run {run_id}: its error was not written to the index"
    )


async def _aside(work: Awaitable[object], otherwise: str) -> None:
    """Await work on which the run does not depend. Errors are logged and suppressed."""
    try:
        await work
    except HoldfastError as error:
        log.warning("%s (%s)", otherwise, error)


def _error_text(state: RunState) -> str | None:
    if state.outcome is None:
        return None
    error = state.outcome.fields.get("error")
    if isinstance(error, dict):
        return explained(*recorded_error(error))
    return str(error or state.outcome.fields.get("reason") or "") or None
