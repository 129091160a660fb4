"""Register: one mutable object, edited by compare-and-swap, each operation applied exactly once.

``edit(operation_id, change)`` reads, applies the pure function, writes if-match, and starts over if another editor was
faster. A write that landed may be overwritten before its writer reads it back, so whether an operation was applied is
answered from a history, not from the current value. The register contains it: the last K operation ids, newest first,
each with its sequence number and a mark of the attempt that applied it.

After every attempt that lost, the history is searched back to the state that the attempt was based on. If the operation
is not there, that attempt can never land: its version never occurs again, because a write id makes every body unique.
So only the last attempt may still land. An editor that finds more than K operations between the base of its attempt and
the current state gets ``Ambiguous``, never a second application. An idle editor reads the register again first, so it
does not get this error.

A register is never deleted: a paused writer could create a deleted name again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, IfMatch, Lost, NotModified, Object, Store, Version

T = TypeVar("T")

CONTENTION = RetryPolicy(attempts=100, base_ms=5, max_ms=500, deadline_ms=60_000)
"""How long an editor retries under contention."""
KEEP = 64
"""How many operations a register remembers."""
WARM_MS = 200
"""The greatest age of a remembered state that an edit starts from. Others cannot apply ``KEEP`` operations in this
time; edits in quick succession still cost one request."""


class Shape(Protocol[T]):
    """How a value is stored in a document. ``write`` gets the previous document, to keep its unknown fields."""

    def read(self, document: Document, key: str) -> T: ...

    def write(self, value: T, previous: Document | None) -> Document: ...


@dataclass(frozen=True)
class Plain(Shape[Any]):
    """Any JSON value, under ``value``, in a document with this format."""

    format_name: str
    newest: int = 1

    def read(self, document: Document, key: str) -> Any:
        codec.expect(document, format_name=self.format_name, newest=self.newest, key=key)
        return document.get("value")

    def write(self, value: Any, previous: Document | None) -> Document:
        return {**(previous or {}), "format": self.format_name, "version": self.newest, "value": value}


class Applied(NamedTuple):
    """An operation of the log."""

    sequence: int
    mark: str
    """Which attempt it was (``mark_of``): of several callers with one operation id, one has applied it."""


def mark_of(document: Document) -> str:
    """Distinguishes the attempts of one operation: the beginning of the write id, short because a log has many."""
    return str(document["write_id"])[:8]


_NO_LOG: Document = {"incarnation": None, "sequence": 0, "recent": []}


def _log(document: Document | None) -> Document:
    if document is None:
        return _NO_LOG
    log = document.get("log", _NO_LOG)
    if not isinstance(log, dict) or not {"incarnation", "sequence", "recent"} <= log.keys():
        raise Corrupt("a register's log is not in its document's 'log' field")
    recent = log["recent"]
    if not isinstance(recent, list) or not all(isinstance(each, list) and len(each) == 3 for each in recent):
        raise Corrupt("a register's log does not list operations with sequence numbers and marks")
    return log


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    value: T
    version: Version
    document: Document


@dataclass(frozen=True, slots=True)
class Edited(Generic[T]):
    """The operation was applied, and ``value`` was its result.

    ``replayed`` means that an earlier call had applied it; ``value`` is then the current value.
    """

    value: T
    sequence: int
    replayed: bool = False


class Unchanged:
    """A change function returns it to leave the register as it is."""


UNCHANGED = Unchanged()


class Register(Generic[T]):
    """One object under one key.

    Keep the instance: it remembers the last version it saw, so edits in quick succession without contention cost one
    request each.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        shape: Shape[T],
        ambient: Ambient,
        *,
        keep: int = KEEP,
        policy: RetryPolicy = CONTENTION,
    ) -> None:
        self._store = store
        self.key = key
        self._shape = shape
        self._ambient = ambient
        self._keep = keep
        self._policy = policy
        self._last: Snapshot[T] | None = None
        self._last_ns = 0

    @property
    def remembered(self) -> Snapshot[T] | None:
        """The state that this instance read or wrote last."""
        return self._last

    async def read(self) -> Snapshot[T] | None:
        """The register now; None if it does not exist. A conditional GET if this instance has seen it before."""
        known = self._last
        if known is None:
            return self._remember(self._parse(await self._store.find(self.key)))
        try:
            found = await self._store.get_unless(self.key, known.version)
        except NotFound:
            return self._remember(None)
        return self._remember(known if isinstance(found, NotModified) else self._parse(found))

    async def edit(self, operation_id: str, change: Callable[[T | None], T | Unchanged]) -> Edited[T]:
        """Apply ``change`` once. A repeated ``operation_id`` is recognised while it is in the history.

        ``change`` may be called several times, and must be pure. A result that leads to no write (``UNCHANGED``, an
        exception, an operation that an earlier call applied) is used only if the state was read in this call.
        """
        call: _Call[T] = _Call(operation_id)
        budget = self._policy.start(self._ambient)
        base, fresh = (self._last, False) if self._is_warm() else (await self.read(), True)
        while True:
            landed = self._landed(call, base)
            if landed is not None and (fresh or not landed.replayed):
                return landed
            value = _apply(change, base, fresh)
            if isinstance(value, _Stale) or landed is not None:
                base, fresh = await self.read(), True
                continue
            if isinstance(value, Unchanged):
                return self._unchanged(base)
            outcome = await self._attempt(call, value, base)
            if isinstance(outcome, Edited):
                return outcome
            base, fresh = self._remember(self._parse(outcome.current)), True
            landed = self._landed(call, base)
            if landed is not None:
                return landed
            if not await budget.another():
                raise Conflict(f"{self.key}: operation {operation_id} lost {budget.spent} races and was not applied")
            if budget.spent > 1:
                # Under contention the state is outdated after the wait: a write based on it would lose again.
                base = await self.read()

    async def _attempt(self, call: "_Call[T]", value: T, base: Snapshot[T] | None) -> Edited[T] | Lost:
        document = self._compose(value, base, call.operation_id)
        sequence = _log(document)["sequence"]
        call.begin(mark_of(document), value, base)
        mode = CREATE if base is None else IfMatch(base.version)
        outcome = await self._store.put(self.key, codec.encode(document), mode)
        if isinstance(outcome, Lost):
            return outcome
        self._remember(Snapshot(value, outcome.version, document))
        return Edited(value, sequence)

    def search(self, operation_id: str, since: Document | None, current: Document) -> Applied | None:
        """The operation in the log; None if it was not applied between the states ``since`` and ``current``.
        ``Ambiguous`` if the log does not reach back to ``since``.
        """
        log = _log(current)
        for sequence, applied_id, mark in log["recent"]:
            if applied_id == operation_id:
                return Applied(sequence, mark)
        earlier = _log(since)
        applied = log["sequence"] - earlier["sequence"]
        if earlier["incarnation"] not in (None, log["incarnation"]):
            reason = "the register was deleted and created again"
        elif applied < 0:
            reason = "the register's sequence ran backwards"
        elif applied > self._keep:
            reason = f"{applied} operations were applied since the last attempt, and it remembers {self._keep}"
        else:
            return None
        raise Ambiguous(f"{self.key}: cannot tell whether operation {operation_id} was applied: {reason}")

    def _landed(self, call: "_Call[T]", base: Snapshot[T] | None) -> Edited[T] | None:
        """The result, if the history has an earlier attempt of this call, or an earlier call with the same id."""
        if base is None:
            if call.base is not None:
                raise Ambiguous(f"{self.key}: the register vanished under operation {call.operation_id}")
            return None
        since = call.base if call.in_doubt else base
        applied = self.search(call.operation_id, since.document if since is not None else None, base.document)
        if applied is None:
            call.in_doubt = False
            return None
        if applied.mark in call.tried:
            return Edited(call.tried[applied.mark], applied.sequence)
        return Edited(base.value, applied.sequence, replayed=True)

    def _is_warm(self) -> bool:
        age_ns = self._ambient.clock.monotonic_ns() - self._last_ns
        return self._last is not None and age_ns <= WARM_MS * 1_000_000

    def _remember(self, snapshot: Snapshot[T] | None) -> Snapshot[T] | None:
        self._last, self._last_ns = snapshot, self._ambient.clock.monotonic_ns()
        return snapshot

    def _unchanged(self, base: Snapshot[T] | None) -> Edited[T]:
        if base is None:
            raise Invalid(f"{self.key}: a register that does not exist cannot be left unchanged")
        return Edited(base.value, _log(base.document)["sequence"])

    def _compose(self, value: T, base: Snapshot[T] | None, operation_id: str) -> Document:
        previous = base.document if base is not None else None
        document = {**self._shape.write(value, previous), "write_id": self._ambient.ids.write_id()}
        log = _log(previous)
        sequence = log["sequence"] + 1
        recent = [[sequence, operation_id, mark_of(document)], *log["recent"]][: self._keep]
        incarnation = log["incarnation"] or self._ambient.ids.unique()
        return {**document, "log": {"incarnation": incarnation, "sequence": sequence, "recent": recent}}

    def _parse(self, found: Object | None) -> Snapshot[T] | None:
        if found is None:
            return None
        document = codec.decode(found.body, key=self.key)
        return Snapshot(self._shape.read(document, self.key), found.version, document)


@dataclass
class _Call(Generic[T]):
    """One call of ``edit``: the values it tried to write, by mark, and the state its last attempt was based on."""

    operation_id: str
    base: Snapshot[T] | None = None
    in_doubt: bool = False
    """Whether the last attempt may have landed."""
    tried: dict[str, T] = field(default_factory=dict)

    def begin(self, mark: str, value: T, base: Snapshot[T] | None) -> None:
        self.base = base
        self.in_doubt = True
        self.tried[mark] = value


class _Stale:
    """The change function asked for no write, but the state may be outdated: read again."""


def _apply(
    change: Callable[[T | None], T | Unchanged], base: Snapshot[T] | None, fresh: bool
) -> T | Unchanged | _Stale:
    try:
        value = change(base.value if base is not None else None)
    except Exception:
        if fresh:
            raise
        return _Stale()
    return _Stale() if isinstance(value, Unchanged) and not fresh else value
