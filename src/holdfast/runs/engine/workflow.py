"""Workflows: a function that may be called again and again, and does everything once.

    @runs.workflow(version="1")
    async def triage(ctx, ticket): ...

    outcome = await triage.start(store, ticket, run_id="INC-4821")
    outcome = await triage.resume(store, "INC-4821", "human-approval", {"approved": True})

``start`` is also how a run is continued: a dispatcher calls it again with the same run id and input.
"""

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, overload

from holdfast.base import codec, telemetry
from holdfast.base.errors import Invalid
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.runs import layout
from holdfast.runs.engine import session
from holdfast.runs.engine.calls import Outcome, Retry
from holdfast.runs.engine.plan import Identity, plan_call, plan_cancel, plan_resume, plan_retry
from holdfast.runs.errors import RunFinished
from holdfast.runs.journal import mailbox
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.payload import Packed
from holdfast.runs.journal.state import NEW
from holdfast.runs.layout import check_name
from holdfast.runs.values import to_json

Function = Callable[..., Awaitable[Any]]

NEVER_AGAIN = Retry(attempts=1)


class Workflow:
    """A workflow function with a name and a version. Make one with the ``workflow`` decorator."""

    def __init__(self, function: Function, name: str, version: str | None, retry: Retry) -> None:
        if not inspect.iscoroutinefunction(function):
            raise Invalid(f"workflow {name} is not an async function", remedy="write async def")
        if version is not None and not isinstance(version, str):
            raise Invalid(f"workflow {name}: version={version!r} is not a string", remedy=f'write version="{version}"')
        if not _takes_context(function):
            raise Invalid(f"workflow {name} takes no context", remedy=f"write async def {name}(ctx, ...)")
        Retry.check(retry)
        self.function = function
        self.name = check_name(name, "workflow")
        self.version = version
        self.retry = retry
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<workflow {self.name} version {self.version}>"

    async def start(
        self,
        store: Store,
        *args: Any,
        run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        parent: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> Outcome:
        """Start a run, or continue it: same id and input. Without ``run_id`` it gets a new one."""
        ambient = ambient_of(store)
        ident = layout.check_run_id(run_id) if run_id is not None else ambient.ids.unique()
        session.check_arguments(self, args, kwargs)
        given = {"args": list(args), "kwargs": kwargs}
        digest = _digest(given)
        first: dict[str, Any] = {"inputHash": digest}
        if metadata:
            if not isinstance(metadata, Mapping):
                raise Invalid(f"metadata={metadata!r:.80} is not a mapping", remedy="write metadata={...}")
            first["metadata"] = to_json(dict(metadata), "metadata")
        if tags:
            first["tags"] = _checked_tags(tags)
        if parent is not None:
            first["parent"] = dict(parent)
        packed = Packed(given, "arguments")
        packed.read_back()
        who = Identity(ident, self.name, self.version, digest, first, packed, drawn=run_id is None)
        return await self._call(store, who, lambda state, now_ns: plan_call(state, who, now_ns))

    async def proceed(self, store: Store, run_id: str) -> Outcome:
        """Go on with a run that exists, with the input that it was started with."""
        who = Identity(layout.check_run_id(run_id), self.name, self.version)
        return await self._call(store, who, lambda state, now_ns: plan_call(state, who, now_ns))

    async def resume(
        self, store: Store, run_id: str, event: str, value: Any = None, *, key: str | None = None
    ) -> Outcome:
        """Give a suspended run the event that it waits for, and continue. ``WrongEvent`` if it does not wait for it.

        ``key`` names the delivery: a second one with the same key, also by ``runs.deliver``, answers nothing more.
        """
        ambient = ambient_of(store)
        delivery = mailbox.keyed_id(key) if key is not None else None
        who = Identity(layout.check_run_id(run_id), self.name, self.version, delivery=delivery)
        fields = await Packed(value, f"value of event {event}").fields("value", store, ambient, run_id)
        if delivery is not None:
            fields["mail"] = delivery
        return await self._call(store, who, lambda state, now_ns: plan_resume(state, who, event, fields, now_ns))

    async def cancel(self, store: Store, run_id: str, *, reason: str = "cancelled") -> Outcome:
        """Cancel a run and let its clean-up run here and now. A process that is working on it is fenced."""
        who = Identity(layout.check_run_id(run_id), self.name, self.version)
        return await self._call(store, who, lambda state, now_ns: plan_cancel(state, who, reason, now_ns))

    async def retry_failed(self, store: Store, run_id: str) -> Outcome:
        """Open a failed run again. Recorded steps stay recorded."""
        who = Identity(layout.check_run_id(run_id), self.name, self.version)
        return await self._call(store, who, lambda state, _: plan_retry(state, who))

    async def _call(self, store: Store, who: Identity, planner: session.Planner) -> Outcome:
        with telemetry.span("holdfast.run", run_id=who.run_id, workflow=self.name):
            return await session.call(self, store, ambient_of(store), who, planner)


@overload
def workflow(function: Function, /) -> Workflow: ...
@overload
def workflow(
    *, version: str | None = None, name: str | None = None, retry: Retry = NEVER_AGAIN
) -> Callable[[Function], Workflow]: ...
def workflow(
    function: Function | None = None,
    /,
    *,
    version: str | None = None,
    name: str | None = None,
    retry: Retry = NEVER_AGAIN,
) -> Workflow | Callable[[Function], Workflow]:
    """Make a workflow of an async function. Change ``version`` when a change would not replay old journals.

    ``retry`` is for the run as a whole: after a failure it is tried again later, from its first unrecorded step.
    """

    def wrap(function: Function) -> Workflow:
        return Workflow(function, name or str(getattr(function, "__name__", "workflow")), version, retry)

    return wrap if function is None else wrap(function)


def _takes_context(function: Function) -> bool:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return first is not None and (first.kind in by_position or first.kind is inspect.Parameter.VAR_POSITIONAL)


async def deliver(store: Store, run_id: str, event: str, value: Any = None, *, key: str | None = None) -> str:
    """Leave an event for a run, whether or not it waits for it yet; a worker will continue it. The mail's id.

    Without a ``key``, the same value delivered twice while the run waits for the event is one delivery. ``RunFinished``
    if the run has ended, unless it has consumed a delivery with this key.
    """
    return (await post(store, run_id, event, value, key=key)).id


async def post(store: Store, run_id: str, event: str, value: Any, *, key: str | None) -> mailbox.Posted:
    """``deliver``, and whether the event was delivered before."""
    ambient = ambient_of(store)
    layout.check_event(event)
    history = await read_history(store, run_id)
    state = history.state if history is not None else NEW
    if history is not None and state.finished:
        if key is not None and mailbox.keyed_id(key) in mailbox.taken(history):
            return mailbox.Posted(mailbox.keyed_id(key), again=True)
        raise RunFinished(f"run {run_id} has ended: it takes no event {event!r}", remedy="do not deliver it again")
    question = None
    if key is None and state.pending is not None and state.pending.event == event:
        question = f"{run_id} {state.generation} {state.pending.entry.offset} {event}"
    posted = await mailbox.post(store, ambient, run_id, event, value, key=key, question=question)
    await RunIndex(store, ambient).nudge(run_id, posted.id, event)
    return posted


def _checked_tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise Invalid(f"tags={tags!r} is not a list of tags", remedy=f"write tags=[{tags!r}]")
    return [check_name(tag, "tag") for tag in tags]


def _digest(given: Mapping[str, Any]) -> str:
    return hashlib.sha256(codec.encode({"input": to_json(dict(given), "arguments")})).hexdigest()
