"""The commit protocol: data and manifest, then the head by compare-and-swap. Nothing else makes a commit.

* **The head CAS decides.** It is an if-match write over the very version that the delta was computed on. Nothing before
  it is visible; after it nothing can fail the commit.
* **After any doubt, ask the chain.** A lost race, a lost answer, a failure or a cancelled caller leave an attempt in
  doubt: it may stand in the chain, overwritten or not. The question is whether the manifest at its number on the
  current head's chain is its own. While the head has not moved, the attempt may still land; whatever is tried next
  rests on the same version, so that one of them lands at most.
* **Rebase.** After a lost race the head, the schemas and the state are brought forward and the delta is computed anew;
  what has become a no-op commits nothing. "Nothing to do" is believed only if the head has not moved meanwhile.
* **Intents stay queued** until they are known to be on the chain, or were found to change nothing.
* **Clean-up** of an own attempt: when another one is on the chain in its place, or when its head was never sent.

Errors: ``Conflict`` for an expectation or ``if_head`` that does not hold, for a lock that its holder keeps, and after
many lost races; ``Ambiguous`` when the head's outcome is unknown (call again: it looks first); ``Incompatible`` for a
type whose stored schema is another; ``Unavailable``; ``Corrupt``. Intents are queued after each of them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Contended, Corrupt, HoldfastError, Unavailable, check
from holdfast.base.ids import Ambient
from holdfast.objects.retry import Budget, RetryPolicy
from holdfast.objects.store import CREATE, Lost, NotModified, Object, Store, Written
from holdfast.ontology.commit.attempt import PLAIN, Attempt, Bulk, Draft, Order, Witness, draw
from holdfast.ontology.commit.delta import check_ends, delta
from holdfast.ontology.commit.lock import Open, Turn
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.batch import Batch, Intent, Row, size, sorted_out
from holdfast.ontology.format.head import parse, read_head
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.types.errors import BulkOutdated, Overtaken, SchemaPending
from holdfast.ontology.types.refs import Place, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that is on the chain."""

    commit_id: int
    manifest_path: str
    rows: int
    created_at: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a commit has come: which of ``STAGES``, and how much of what is done."""

    stage: str
    done: int
    total: int


STAGES = ("state", "delta", "files", "head")


def commit_of(manifest: Manifest) -> Commit:
    rows = sum(entry.row_count for entry in manifest.files)
    return Commit(manifest.commit_id, manifest.path, rows, manifest.created_at)


P = ParamSpec("P")
T = TypeVar("T")

RACES = RetryPolicy(attempts=40, base_ms=10, max_ms=500, deadline_ms=120_000)
"""How long a commit keeps trying against others."""
PARALLEL = 16
LARGE = 2_000
"""From this many intents on a thread is used."""
UNLOCKED = 2
"""How often a bulk file is written without holding the lock, which others need meanwhile; after that with it."""


class Committer:
    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        view: View,
        types: Mapping[TypeId, TypeInfo],
        *,
        runtime_id: str,
        turn: Turn | None = None,
        on_commit: Callable[[Manifest], None] | None = None,
        policy: RetryPolicy = RACES,
        uploads: int = PARALLEL,
        ends: Mapping[TypeId, tuple[TypeId, TypeId]] | None = None,
    ) -> None:
        """With ``ends``, relations whose ends do not exist are refused."""
        self._store = store
        self._ambient = ambient
        self._view = view
        self._types = types
        self._runtime_id = runtime_id
        self._turn = turn if turn is not None else Open()
        self._on_commit = on_commit
        self._policy = policy
        self._uploads = uploads
        self._ends = ends
        self._progress: Callable[[Progress], None] | None = None
        self._witness: Witness | None = None
        self._one = asyncio.Lock()
        self._doubts: list[Attempt] = []
        """Sent, and not known to have landed or not. All rest on the version of the head that we know."""
        self._landed: Commit | None = None
        """An attempt that was in doubt and is on the chain, and that no caller has been given yet."""
        self._idle_intents = 0
        """How many of the queued intents were found to change nothing."""
        self.queue: list[Intent | Batch] = []
        self.outbox: list[Document] = []
        """Messages that the next commit carries; queued like intents."""

    def discard(self) -> int:
        """Forget what is queued; how much there was. What is in an attempt in doubt may still be committed."""
        count = size(self.queue) + len(self.outbox)
        self.queue.clear()
        self.outbox.clear()
        self._doubts = [replace(attempt, intents=0, enclosed=0, wanted=False) for attempt in self._doubts]
        self._landed = None
        return count

    async def commit(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        if_head: int | None = None,
        order: Order = PLAIN,
        progress: Callable[[Progress], None] | None = None,
        witness: Witness | None = None,
    ) -> Commit | None:
        """Commit what is queued; None if that changes nothing. ``order`` is what is to be done besides.

        With a ``witness``, what one of its attempts has committed is not committed again.
        """
        async with self._one:
            self._progress, self._witness = progress, witness
            if not (self.queue or self.outbox or order or self._doubts) and if_head is None:
                return None
            try:
                return await self._commit(metadata or {}, if_head, order)
            except (Ambiguous, Corrupt):
                raise
            except HoldfastError as error:
                if not self._doubts:
                    raise
                # Whatever failed since, an attempt of ours may be on the chain or may still land.
                raise Ambiguous(f"commit {self._doubts[-1].place.commit_id} may have been made: {error}") from error
            finally:
                self._turn.done()

    async def _commit(self, metadata: Mapping[str, Any], if_head: int | None, order: Order) -> Commit | None:
        budget = self._policy.start(self._ambient)
        fresh = bool(self._doubts) or not self._view.known
        if fresh:
            await self.refresh()
        futile = 0
        while True:
            if (done := await self._done_already(order)) is not None:
                return done
            if if_head is not None and self._view.head.commit_id != if_head:
                if fresh:
                    return self._landed_or_moved(if_head)
                await self.refresh()
                fresh = True
                continue
            try:
                draft = await self._settled_draft(metadata, order)
            except Overtaken:  # as good as a lost race: the redaction has moved the head
                await self.refresh()
                fresh = True
                await self._again(budget)
                continue
            if draft is None:
                if fresh or not await self._moved():
                    return self._nothing_left()
                fresh = True
                continue
            if order.bulk is not None:
                futile += 1
                if futile > UNLOCKED and await self._turn.take() and await self._changed():
                    fresh = True
                    continue
                draft = await self._placed(draft, order.bulk)
            if await self._turn.take() and await self._changed():
                await self._remove([] if draft.placed is None else [draft.placed.path])
                fresh = True
                continue
            done = await self._try(draft)
            if done is not None:
                return done
            fresh = True
            if self._landed is None:
                await self._again(budget)

    async def refresh(self, found: Object | None = None) -> None:
        """Read the current head and ledger, and settle attempts in doubt."""
        head = parse(found) if found is not None else await read_head(self._store)
        await self._view.move_to(head)
        await self._settle_doubts()

    # --- one attempt ---

    async def _settled_draft(self, metadata: Mapping[str, Any], order: Order) -> Draft | None:
        """A plain writer that migrates a type keeps the lock until it has written the schema: wait for that once."""
        try:
            return await self._draft(metadata, order)
        except SchemaPending:
            if not await self._turn.take():
                raise
            await self.refresh()
            return await self._draft(metadata, order)

    async def _draft(self, metadata: Mapping[str, Any], order: Order) -> Draft | None:
        """The rows to write, based on the state at the known head; None if there are none."""
        items = tuple(self.queue)
        queued = {item.type_id for item in items}
        known, touched = {*queued, *order.write}, {*queued, *order.touched}
        self._report("state", 0, len(known))
        states = await self._view.states({*known, *self._ends_of(known)})
        self._report("delta", 0, size(items))
        run = blocking if size(items) > LARGE else _at_once
        batches, intents = await run(sorted_out, items, columns=self._ends is None)
        changes = await run(delta, intents, states)
        if self._ends is not None:
            check_ends(changes, intents, states, self._ends)
        outbox = tuple(self.outbox)
        rows: dict[TypeId, Sequence[Row]] = {}
        for type_id, batch in batches.items():
            if changed := await blocking(states[type_id].changed, batch):
                rows[type_id] = changed
        schemas = None
        if rows or changes or outbox or order:
            schemas = await self._view.agree(self._types, touched, order)
        if schemas is None or not (rows or changes or outbox or self._view.changed_by(order, schemas)):
            self._idle_intents = len(items)
            return None
        bulk = order.bulk
        if bulk is not None and not bulk.stands(self._view.ledger, schemas.versions[bulk.type_id]):
            raise BulkOutdated(f"{bulk.type_id.label}: commit {self._view.head.commit_id} has other rows than it did")
        for type_id, wanted in changes.items():
            rows[type_id] = await self._view.rows(type_id, wanted)
        rows |= order.write
        count = len(items)
        return Draft(rows, schemas.versions, schemas.registered, order, metadata, self._runtime_id, count, outbox)

    async def _placed(self, draft: Draft, bulk: Bulk) -> Draft:
        """With the data file of the bulk written, for an attempt with a mark of 128 random bits."""
        mark = self._ambient.ids.unique()
        return replace(draft, placed=await bulk.place(self._view.ledger.commit_id + 1, mark), mark=mark)

    async def _try(self, draft: Draft) -> Commit | None:
        """One attempt; None if it lost."""
        attempt = await blocking(draw, draft, self._view.ledger, self._types, self._ambient)
        if not await self._prepare(attempt):
            await self.refresh()
            return None
        try:
            self._turn.guard()
        except Conflict:
            await self._clean(attempt)  # its head was never sent
            await self.refresh()
            return None
        outcome = await self._publish(attempt)
        if isinstance(outcome, Written):
            return self._adopt(attempt, outcome)
        await self.refresh(outcome.current)
        return None

    async def _prepare(self, attempt: Attempt) -> bool:
        """Everything before the head, at once. False if the attempt has to be drawn again."""
        if self._witness is None:
            return await self._upload(attempt)
        work = (self._upload(attempt), self._witness.note(attempt.place))
        uploaded, noted = await asyncio.gather(*work, return_exceptions=True)
        if isinstance(noted, BaseException):
            await self._clean(attempt)
            raise noted
        if isinstance(uploaded, BaseException):
            raise uploaded
        return bool(uploaded)

    async def _upload(self, attempt: Attempt) -> bool:
        """Data and manifest, at once. False if another writer has drawn the same eight characters."""
        objects = [*attempt.data.items(), (attempt.manifest.path, attempt.body)]
        done = 0

        async def put(item: tuple[str, bytes]) -> Written | Lost:
            nonlocal done
            outcome = await self._store.put(item[0], item[1], CREATE)
            done += 1
            self._report("files", done, len(objects))
            return outcome

        try:
            outcomes = await map_bounded(objects, put, limit=self._uploads)
        except (Ambiguous, Unavailable) as error:
            await self._clean(attempt)
            raise Unavailable(f"commit {attempt.place.commit_id} was not made: {error}") from error
        return not any(isinstance(outcome, Lost) for outcome in outcomes)

    async def _publish(self, attempt: Attempt) -> Written | Lost:
        """The head CAS. In doubt from the moment it is sent, unless the store says that nothing was written."""
        head = self._view.head
        self._report("head", 0, 1)
        body = attempt.head(head).body(self._ambient.ids.write_id())
        self._doubts.append(attempt)
        try:
            outcome = await self._store.put(layout.HEAD, body, head.condition)
        except Unavailable as error:
            if error.maybe_applied or isinstance(error, Contended):
                raise Ambiguous(f"commit {attempt.place.commit_id} may or may not have been made ({error})") from error
            self._doubts.remove(attempt)
            raise
        return outcome

    def _adopt(self, attempt: Attempt, outcome: Written) -> Commit:
        """The commit is made: from here on nothing may fail."""
        self._doubts.clear()
        self._landed = None
        self._view.advance(attempt.head(self._view.head), outcome.version, attempt.manifest, attempt.rows)
        self._dequeue(attempt)
        self._turn.committed()
        if self._on_commit is not None:
            self._on_commit(attempt.manifest)
        return commit_of(attempt.manifest)

    # --- after a doubt ---

    async def _settle_doubts(self) -> None:
        """Which of our attempts is on the chain. While the head has not moved, they stay in doubt."""
        head = self._view.head
        gone: list[Attempt] = []
        for attempt in [each for each in self._doubts if each.place.commit_id <= head.commit_id]:
            if await self.landed(attempt):
                self._dequeue(attempt)
                self._landed = commit_of(attempt.manifest) if attempt.wanted else None
                self._turn.committed()
                if self._on_commit is not None:
                    self._on_commit(attempt.manifest)
            else:
                gone.append(attempt)
            self._doubts.remove(attempt)
        for attempt in gone:
            await self._clean(attempt)

    def _dequeue(self, attempt: Attempt) -> None:
        del self.queue[: attempt.intents]
        del self.outbox[: attempt.enclosed]

    async def _done_already(self, order: Order) -> Commit | None:
        """The commit that an earlier attempt of this or another session made; what is queued is then in it."""
        head, bulk = self._view.head, order.bulk
        if bulk is not None and self._landed is not None:
            landed, self._landed = self._landed, None
            return landed
        position = self._view.ledger.sinks.get(bulk.source) if bulk is not None and bulk.source is not None else None
        if bulk is not None and position is not None and position.batch >= bulk.batch:
            made = await self._view.chain.at(head.place, position.commit_id)
            check(made is not None, f"{bulk.source}: commit {position.commit_id} is not on the chain")
            return commit_of(await self._view.chain.manifest(made or Place(0, "")))
        for place in self._witness.places if self._witness is not None else ():
            if place.commit_id <= head.commit_id and await self._view.chain.contains(head.place, place):
                made_before = commit_of(await self._view.chain.manifest(place))
                self.discard()
                return made_before
        return None

    async def landed(self, attempt: Attempt) -> bool:
        return await self._view.chain.contains(self._view.head.place, attempt.place)

    async def _clean(self, attempt: Attempt) -> None:
        await self._remove(attempt.keys)

    async def _remove(self, keys: Sequence[str]) -> None:
        """Best effort: what stays behind is garbage that no manifest names."""
        with suppress(HoldfastError):
            await self._store.delete_many(keys)

    # --- the head ---

    def _landed_or_moved(self, if_head: int) -> Commit:
        """The head is another than the caller expects: by an attempt of ours that was in doubt, or it is a conflict."""
        if self._landed is not None and not (self.queue or self.outbox):
            landed, self._landed = self._landed, None
            return landed
        raise Conflict(
            f"head is commit {self._view.head.commit_id}, and commit {if_head} was expected",
            remedy="read what has changed, decide again, and commit with the new head",
        )

    async def _changed(self) -> bool:
        """Whether others have committed, or dropped a type, while we waited for the lock; then it is known now."""
        return await self._moved() or await self._view.look_again()

    async def _moved(self) -> bool:
        """Whether the head is another than the one we know; then it is known now."""
        version = self._view.head.version
        if version is None:
            await self.refresh()
            return self._view.head.version is not None
        found = await self._store.get_unless(layout.HEAD, version)
        if isinstance(found, NotModified):
            return False
        await self.refresh(found)
        return True

    def _nothing_left(self) -> Commit | None:
        del self.queue[: self._idle_intents]
        landed, self._landed = self._landed, None
        return landed

    def _ends_of(self, touched: Iterable[TypeId]) -> set[TypeId]:
        return {end for type_id in touched for end in (self._ends or {}).get(type_id, ())}

    def _report(self, stage: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(Progress(stage, done, total))

    async def _again(self, budget: Budget) -> None:
        if not await budget.another():
            raise Conflict(
                f"{layout.HEAD}: lost {budget.spent} races; the intents are still queued",
                remedy="commit again when there is less going on",
            )


async def _at_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like ``blocking``, but small work is done in place, because a thread would take longer."""
    return function(*args, **kwargs)


__all__ = ["STAGES", "Commit", "Committer", "Progress"]
