"""The commit protocol: data and manifest, then the head by compare-and-swap. Nothing else makes a commit.

* **The head decides.** It is written over the very version that the delta was computed on. Nothing is visible before
  that write, and nothing after it can fail the commit.
* **After any doubt, ask the chain.** A lost race, a lost answer, a failure or a cancelled caller leave an attempt in
  doubt: it may be on the chain, perhaps below later commits. It is there if its manifest is the one at its number on
  the chain of the current head. While the head has not moved, the attempt may still land. Whatever is tried next is
  based on the same version, so that only one of them can land.
* **Rebase.** After a lost race the head, the schemas and the state are brought forward and the delta is computed again.
  If nothing is left to change, nothing is committed. This is believed only if the head has not moved meanwhile.
* **Intents stay queued** until they are known to be on the chain, or to change nothing.
* **Clean-up.** The objects of an own attempt are deleted when another attempt is on the chain in its place, or when its
  head was never sent.

Errors: ``Conflict`` for an expectation or ``if_head`` that does not hold, for a lock that its holder keeps, and after
many lost races; ``Ambiguous`` when the outcome of the head is unknown (call again: the next call looks first);
``Incompatible`` for a type whose stored schema differs; ``Unavailable``; ``Corrupt``. Intents stay queued in each case.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Contended, Corrupt, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.retry import Budget, RetryPolicy
from holdfast.objects.store import CREATE, Lost, NotModified, Object, Store, Written
from holdfast.ontology.commit.attempt import PLAIN, Attempt, Bulk, Draft, Order, Witness, draw
from holdfast.ontology.commit.delta import delta
from holdfast.ontology.commit.lock import CommitLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.batch import Batch, Intent, Row, size, split_batches
from holdfast.ontology.format.head import parse, read_head
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.types.errors import BulkOutdated, Overtaken, SchemaPending
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that is on the chain."""

    commit_id: int
    manifest_path: str
    rows: int
    created_at: str


def commit_of(manifest: Manifest) -> Commit:
    rows = sum(entry.row_count for entry in manifest.files)
    return Commit(manifest.commit_id, manifest.path, rows, manifest.created_at)


P = ParamSpec("P")
T = TypeVar("T")

RACES = RetryPolicy(attempts=40, base_ms=10, max_ms=500, deadline_ms=120_000)
"""How long a commit keeps trying against others."""
PARALLEL = 16
LARGE = 2_000
"""From this many intents on the delta is computed in a thread."""
UNLOCKED = 2
"""How often a bulk file is written without the lock, which others need meanwhile; after that it is written with it."""


class Committer:
    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        view: View,
        types: Mapping[TypeId, TypeInfo],
        *,
        runtime_id: str,
        lock: CommitLock | None = None,
        on_commit: Callable[[Manifest], None] | None = None,
        policy: RetryPolicy = RACES,
        uploads: int = PARALLEL,
    ) -> None:
        self._store = store
        self._ambient = ambient
        self._view = view
        self._types = types
        self._runtime_id = runtime_id
        self._lock = lock if lock is not None else CommitLock()
        self._on_commit = on_commit
        self._policy = policy
        self._uploads = uploads
        self._witness: Witness | None = None
        self._running = asyncio.Lock()
        self._doubts: list[Attempt] = []
        """Attempts whose head was sent and whose outcome is unknown, all based on the present version of the head."""
        self._landed: Commit | None = None
        """An attempt that was in doubt and is on the chain, and that was not returned to a caller yet."""
        self._idle_intents = 0
        """How many of the queued intents change nothing."""
        self.queue: list[Intent | Batch] = []
        self.outbox: list[Document] = []
        """Messages that the next commit carries; queued like intents."""

    def discard(self) -> int:
        """Drop what is queued; returns how much. What an attempt in doubt carries may still be committed."""
        count = size(self.queue) + len(self.outbox)
        self.queue.clear()
        self.outbox.clear()
        self._doubts = [replace(attempt, intents=0, messages=0, wanted=False) for attempt in self._doubts]
        self._landed = None
        return count

    async def commit(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        if_head: int | None = None,
        order: Order = PLAIN,
        witness: Witness | None = None,
    ) -> Commit | None:
        """Commit what is queued, and ``order``; None if that changes nothing.

        With a ``witness``, what one of its earlier attempts has committed is not committed again.
        """
        async with self._running:
            self._witness = witness
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
                self._lock.done()

    async def _commit(self, metadata: Mapping[str, Any], if_head: int | None, order: Order) -> Commit | None:
        budget = self._policy.start(self._ambient)
        fresh = bool(self._doubts) or not self._view.known  # whether the head was read during this call
        if fresh:
            await self.refresh()
        bulk_files = 0
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
                draft = await self._draft_or_wait(metadata, order)
            except Overtaken:  # the redaction has moved the head, as after a lost race
                await self.refresh()
                fresh = True
                await self._retry(budget)
                continue
            if draft is None:
                if fresh or not await self._moved():
                    return self._nothing_to_do()
                fresh = True
                continue
            if order.bulk is not None:
                bulk_files += 1
                if bulk_files > UNLOCKED and await self._lock.acquire() and await self._changed():
                    fresh = True
                    continue
                draft = await self._with_bulk_file(draft, order.bulk)
            if await self._lock.acquire() and await self._changed():
                await self._delete([] if draft.bulk_file is None else [draft.bulk_file.path])
                fresh = True
                continue
            done = await self._try(draft)
            if done is not None:
                return done
            fresh = True
            if self._landed is None:
                await self._retry(budget)

    async def refresh(self, found: Object | None = None) -> None:
        """Read the current head and ledger, and settle attempts in doubt."""
        head = parse(found) if found is not None else await read_head(self._store)
        await self._view.move_to(head)
        await self._settle_doubts()

    # --- one attempt ---

    async def _draft_or_wait(self, metadata: Mapping[str, Any], order: Order) -> Draft | None:
        """A plain writer that migrates a type holds the lock until it has written the schema: wait for that once."""
        try:
            return await self._draft(metadata, order)
        except SchemaPending:
            if not await self._lock.acquire():
                raise
            await self.refresh()
            return await self._draft(metadata, order)

    async def _draft(self, metadata: Mapping[str, Any], order: Order) -> Draft | None:
        """The rows to write, based on the state at the known head; None if there is nothing to commit."""
        items = tuple(self.queue)
        queued = {item.type_id for item in items}
        states = await self._view.states({*queued, *order.write})
        run = blocking if size(items) > LARGE else _in_place
        batches, intents = await run(split_batches, items)
        changes = await run(delta, intents, states)
        outbox = tuple(self.outbox)
        rows: dict[TypeId, Sequence[Row]] = {}
        for type_id, batch in batches.items():
            if changed := await blocking(states[type_id].changed, batch):
                rows[type_id] = changed
        schemas = None
        if rows or changes or outbox or order:
            schemas = await self._view.agree(self._types, {*queued, *order.touched}, order)
        if schemas is None or not (rows or changes or outbox or self._view.changed_by(order, schemas)):
            self._idle_intents = len(items)
            return None
        bulk = order.bulk
        if bulk is not None and not bulk.stands(self._view.ledger, schemas.versions[bulk.type_id]):
            raise BulkOutdated(f"{bulk.type_id.label}: its rows have changed since the load was decided")
        for type_id, wanted in changes.items():
            rows[type_id] = await self._view.rows(type_id, wanted)
        rows |= order.write
        count = len(items)
        return Draft(rows, schemas.versions, schemas.registered, order, metadata, self._runtime_id, count, outbox)

    async def _with_bulk_file(self, draft: Draft, bulk: Bulk) -> Draft:
        """Write the data file of the bulk, under a key with 128 random bits."""
        attempt = self._ambient.ids.unique()
        return replace(draft, bulk_file=await bulk.place(self._view.ledger.commit_id + 1, attempt), attempt=attempt)

    async def _try(self, draft: Draft) -> Commit | None:
        """One attempt; None if it lost."""
        attempt = await blocking(draw, draft, self._view.ledger, self._types, self._ambient)
        if not await self._prepare(attempt):
            await self.refresh()
            return None
        try:
            self._lock.guard()
        except Conflict:
            await self._delete(attempt.keys)  # its head was never sent
            await self.refresh()
            return None
        outcome = await self._publish(attempt)
        if isinstance(outcome, Written):
            return self._adopt(attempt, outcome)
        await self.refresh(outcome.current)
        return None

    async def _prepare(self, attempt: Attempt) -> bool:
        """Write everything but the head, in parallel. False if another writer has drawn the same eight characters."""
        if self._witness is None:
            return await self._upload(attempt)
        work = (self._upload(attempt), self._witness.note(attempt.place))
        uploaded, noted = await asyncio.gather(*work, return_exceptions=True)
        if isinstance(noted, BaseException):
            await self._delete(attempt.keys)
            raise noted
        if isinstance(uploaded, BaseException):
            raise uploaded
        return bool(uploaded)

    async def _upload(self, attempt: Attempt) -> bool:
        objects = [*attempt.data.items(), (attempt.manifest.path, attempt.body)]
        try:
            outcomes = await map_bounded(
                objects, lambda item: self._store.put(item[0], item[1], CREATE), limit=self._uploads
            )
        except (Ambiguous, Unavailable) as error:
            await self._delete(attempt.keys)
            raise Unavailable(f"commit {attempt.place.commit_id} was not made: {error}") from error
        return not any(isinstance(outcome, Lost) for outcome in outcomes)

    async def _publish(self, attempt: Attempt) -> Written | Lost:
        """Write the head. The attempt is in doubt once it is sent, unless the store says that nothing was written."""
        head = self._view.head
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
        return self._record(attempt)

    def _record(self, attempt: Attempt) -> Commit:
        """Note that an attempt is on the chain."""
        del self.queue[: attempt.intents]
        del self.outbox[: attempt.messages]
        self._lock.committed()
        if self._on_commit is not None:
            self._on_commit(attempt.manifest)
        return commit_of(attempt.manifest)

    # --- after a doubt ---

    async def _settle_doubts(self) -> None:
        """Find out which attempts are on the chain. Those at numbers above the head stay in doubt."""
        head = self._view.head
        lost: list[Attempt] = []
        for attempt in [each for each in self._doubts if each.place.commit_id <= head.commit_id]:
            if await self.landed(attempt):
                made = self._record(attempt)
                self._landed = made if attempt.wanted else None
            else:
                lost.append(attempt)
            self._doubts.remove(attempt)
        for attempt in lost:
            await self._delete(attempt.keys)

    async def _done_already(self, order: Order) -> Commit | None:
        """The commit that an earlier attempt of this or another session made of this order, or of what is queued."""
        chain, head, bulk = self._view.chain, self._view.head, order.bulk
        if bulk is not None and self._landed is not None:
            return self._take_landed()
        position = self._view.ledger.sinks.get(bulk.source) if bulk is not None and bulk.source is not None else None
        if bulk is not None and position is not None and position.batch >= bulk.batch:
            place = await chain.at(head.place, position.commit_id)
            if place is None:
                raise Corrupt(f"{bulk.source}: commit {position.commit_id} is not on the chain")
            return commit_of(await chain.manifest(place))
        for place in self._witness.places if self._witness is not None else ():
            if place.commit_id <= head.commit_id and await chain.contains(head.place, place):
                made = commit_of(await chain.manifest(place))
                self.discard()
                return made
        return None

    async def landed(self, attempt: Attempt) -> bool:
        return await self._view.chain.contains(self._view.head.place, attempt.place)

    def _take_landed(self) -> Commit | None:
        landed, self._landed = self._landed, None
        return landed

    async def _delete(self, keys: Sequence[str]) -> None:
        """Best effort: what stays behind is garbage that no manifest names."""
        with suppress(HoldfastError):
            await self._store.delete_many(keys)

    # --- the head ---

    def _landed_or_moved(self, if_head: int) -> Commit:
        """The head is not the expected one: an attempt that was in doubt has moved it, or it is a conflict."""
        if not (self.queue or self.outbox) and (landed := self._take_landed()) is not None:
            return landed
        raise Conflict(
            f"head is commit {self._view.head.commit_id}, and commit {if_head} was expected",
            remedy="read what has changed, decide again, and commit with the new head",
        )

    async def _changed(self) -> bool:
        """Whether others committed, or dropped a type, while this session waited for the lock. If so, read it."""
        return await self._moved() or await self._view.look_again()

    async def _moved(self) -> bool:
        """Whether the head differs from the known one. If so, read it."""
        version = self._view.head.version
        if version is None:
            await self.refresh()
            return self._view.head.version is not None
        found = await self._store.get_unless(layout.HEAD, version)
        if isinstance(found, NotModified):
            return False
        await self.refresh(found)
        return True

    def _nothing_to_do(self) -> Commit | None:
        del self.queue[: self._idle_intents]
        return self._take_landed()

    async def _retry(self, budget: Budget) -> None:
        if not await budget.another():
            raise Conflict(
                f"{layout.HEAD}: lost {budget.spent} races; the intents are still queued",
                remedy="commit again when there is less going on",
            )


async def _in_place(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like ``blocking``, without a thread, which would take longer for small work."""
    return function(*args, **kwargs)


__all__ = ["RACES", "Commit", "Committer", "commit_of"]
