"""Upkeep: objects derived from commits are written after the commit was answered, never on its path.

Indexes of the types that were touched, when the session falls idle and every ``TOUCHED_EVERY`` commits; the watermarks
of all types every ``ALL_EVERY`` commits, after ``ALL_AFTER_S`` and on close; checkpoints; the schema objects of the
specification. Every write is if-match on the version that was read and changed, behind the lock's guard. A failure is
kept as ``warning`` and logged: readers fall back to the chain, and the next flush, of any session, repairs it.

A type whose index names ``FILES`` files is compacted, which is seen from the index that was just written, without a
request. One compaction runs at a time in a session; ``close`` waits for it, so that a session of a single commit takes
its share too. A failure is logged: readers do not need compaction, and a later session does it.

A commit waits for upkeep that is running only if a new session would need ``MOST_READ`` requests or more for a question
by now (``catch_up``): a writer that never pauses would leave it behind otherwise.
"""

import asyncio
from dataclasses import replace

from holdfast.base import telemetry
from holdfast.base.aio import map_bounded
from holdfast.base.errors import Conflict, HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, IfMatch, Lost, Store
from holdfast.ontology.chain.catalog import Catalog
from holdfast.ontology.chain.chain import Chain, checkpoint_span
from holdfast.ontology.commit.lock import Turn
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Index, read_index
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.reindex import brought_forward
from holdfast.ontology.maintain.tiers import pieces_of, plan
from holdfast.ontology.types.refs import Place, TypeId

log = telemetry.logger("ontology")


FILES = 10
"""A type with this many files is compacted, as far as its tiers have something to merge."""
MOST_READ = 28
"""Requests of a new session: for head, index and a manifest; for each file in the index; two for each commit since."""


class AutoCompaction:
    def __init__(self, store: Store, ambient: Ambient, chain: Chain) -> None:
        # Commits go on: what a snapshot says of the files after it would be outdated before it is read.
        self._compactor = Compactor(store, ambient, chain=chain, later=False)
        self._due: dict[TypeId, None] = {}
        self._work: asyncio.Task[None] | None = None
        self._files: dict[TypeId, int] = {}

    def state(self) -> tuple[int, asyncio.Task[None] | None]:
        """The number of files of the type that has most, and the compaction that runs."""
        return max(self._files.values(), default=0), self._work

    def note(self, index: Index, ledger: Ledger) -> None:
        """An index was written. Makes no request; begins a compaction in the background if the type has many files."""
        self._files[index.type_id] = len(index.entries)
        if len(index.entries) < FILES or not plan(pieces_of(index.entries, index.type_id), below=ledger.commit_id):
            return
        self._due[index.type_id] = None
        if self._work is None:
            self._work = asyncio.ensure_future(self._compact())

    async def close(self) -> None:
        """Wait until all that is due was compacted."""
        if self._work is not None:
            await self._work

    async def _compact(self) -> None:
        while self._due:
            type_id, _ = self._due.popitem()
            try:
                made = await self._compactor.compact(type_id)
                self._files[type_id] -= sum(len(each.merge.pieces) - 1 for each in made)
                if any(piece.entry.snapshot for each in made for piece in each.merge.pieces):
                    await self._compactor.sweep([type_id])
            except HoldfastError as error:
                log.warning("%s was not compacted (%s); a later commit tries again", type_id.label, error)
        self._work = None


TOUCHED_EVERY = 8
ALL_EVERY = 64
ALL_AFTER_S = 5.0
PARALLEL = 8
TRIES = 4


class Upkeep:
    def __init__(
        self, store: Store, ambient: Ambient, view: View, turn: Turn, runtime_id: str, *, compaction: bool = False
    ) -> None:
        self._store = store
        self._ambient = ambient
        self._view = view
        self._turn = turn
        self._catalog = Catalog(store, ambient, runtime_id)
        self._compaction = AutoCompaction(store, ambient, view.chain) if compaction else None
        self._synced = False
        self._indexes: dict[TypeId, Index] = {}
        self._touched: set[TypeId] = set()
        self._registered = False
        self._checkpoints: list[Place] = []
        self._commits = 0
        """Since the watermarks of all types were flushed."""
        self._unindexed = 0
        """Commits since the last flush began."""
        self._timer: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[bool] | None = None
        self._one = asyncio.Lock()
        self.warning: str | None = None

    def note(self, manifest: Manifest) -> None:
        """Note that a commit of ours is on the chain. Makes no request."""
        self._touched |= manifest.touched
        ends = manifest.summary is not None and any(ref is None for ref in manifest.summary.schemas.values())
        self._registered |= bool(manifest.registered) or ends
        self._commits += 1
        self._unindexed += 1
        if checkpoint_span(manifest.commit_id):
            self._checkpoints.append(manifest.place)
        if self._timer is None:
            self._timer = asyncio.ensure_future(self._after(ALL_AFTER_S))
        if self._commits % TOUCHED_EVERY == 0 and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.ensure_future(self.flush(everything=self._commits >= ALL_EVERY))

    async def catch_up(self) -> None:
        """Wait for upkeep that runs and has fallen behind. Call it before a commit, without the lock."""
        for _ in range(2):  # a flush may begin a compaction
            files, compacting = (0, None) if self._compaction is None else self._compaction.state()
            running = [task for task in (self._flushing, compacting) if task is not None and not task.done()]
            if not running or 3 + files + 2 * self._unindexed < MOST_READ:
                return
            await asyncio.wait(running)

    async def idle(self) -> None:
        """Called when the session is idle and still holds the lock."""
        if self._touched or self._registered or self._checkpoints:
            await self.flush(everything=False)

    async def close(self) -> None:
        """The last flush, if anything is due and the lock is free: another holder flushes all types itself."""
        self.stop()
        if self._flushing is not None:
            await self._flushing
        if self._commits:
            await self.flush(everything=True)
        if self._compaction is not None:
            await self._compaction.close()

    async def flush(self, *, everything: bool) -> bool:
        """Write what is due, if the lock is free: another holder flushes all types itself. False if it was not
        done; what could not be written is in ``warning``.
        """
        async with self._one:
            self._turn.keep(+1)
            try:
                if not await self._turn.try_take():
                    return False
                self._turn.guard()
                await self._write_schemas()
                await self._write_indexes(everything=everything)
                while self._checkpoints:
                    await self._view.chain.write_checkpoint(self._checkpoints[0])
                    del self._checkpoints[0]
            except HoldfastError as error:
                self._warn(error)
                return False
            finally:
                self._turn.keep(-1)
            self.warning = None
            return True

    # --- schemas ---

    async def _write_schemas(self) -> None:
        if self._synced and not self._registered:
            return
        self._registered = False
        try:
            await self._catalog.sync(self._view.chain, self._view.ledger)
        except BaseException:
            self._registered = True
            raise
        self._synced = True

    # --- indexes ---

    async def _write_indexes(self, *, everything: bool) -> None:
        ledger, commits, self._unindexed = self._view.ledger, self._commits, 0
        wanted = {*self._touched, *ledger.heads, *ledger.schemas} if everything else set(self._touched)
        self._touched.clear()
        try:
            await map_bounded(sorted(wanted), lambda type_id: self._write_index(type_id, ledger), limit=PARALLEL)
        except BaseException:
            self._touched |= wanted
            raise
        if everything:
            self._commits -= commits

    async def _write_index(self, type_id: TypeId, ledger: Ledger) -> None:
        index = self._indexes.pop(type_id, None)
        for _ in range(TRIES):
            if index is None:
                index = await read_index(self._store, type_id)
            after = await self._brought_forward(index, ledger)
            if after is None or after == index:
                self._indexes[type_id] = index
                return
            mode = CREATE if index.version is None else IfMatch(index.version)
            self._turn.guard()
            body = after.body(self._ambient.ids.write_id())
            outcome = await self._store.put(layout.index_key(*type_id), body, mode)
            if not isinstance(outcome, Lost):
                self._indexes[type_id] = replace(after, version=outcome.version)
                if self._compaction is not None:
                    self._compaction.note(after, ledger)
                return
            index = None
        raise Conflict(f"{layout.index_key(*type_id)}: others keep writing it")

    async def _brought_forward(self, index: Index, ledger: Ledger) -> Index | None:
        """The index as it should be; None if a session that knows a later head has written it."""
        if index.watermark > ledger.commit_id and index.watermark <= (await read_head(self._store)).commit_id:
            return None
        return await brought_forward(self._view.chain, ledger, index)

    # --- when ---

    async def _after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._timer = None
        if self._commits:
            await self.flush(everything=True)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _warn(self, error: HoldfastError) -> None:
        self.warning = str(error)
        log.warning("indexes lag behind (%s); readers use the chain, the next flush corrects it", error)
