"""Upkeep: objects that are derived from commits are written after the commit was answered, never on its path.

Indexes of the types that were touched are written when the session is idle and every ``TOUCHED_EVERY`` commits; those
of all types every ``ALL_EVERY`` commits, after ``ALL_AFTER_S``, and on close; besides these checkpoints, and the schema
objects of the specification. Every write names the version that was read, and is behind the lock's guard. A failure is
kept as ``warning`` and logged: readers use the chain instead, and the next flush of any session writes what is missing.

A type whose index names ``FILES`` files is compacted. One compaction runs at a time in a session. ``close`` waits for
it, so that sessions of a single commit compact too. A failure is logged: a later session compacts.

A commit waits for upkeep that is running only if a new session would already need ``MOST_READ`` requests or more for a
question (``catch_up``). Otherwise a writer that never pauses would leave upkeep behind.
"""

import asyncio

from holdfast.base import telemetry
from holdfast.base.aio import map_bounded
from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import Catalog
from holdfast.ontology.chain.chain import Chain, checkpoint_span
from holdfast.ontology.commit.lock import CommitLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Index
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.reindex import brought_forward, update_index
from holdfast.ontology.maintain.tiers import pieces_of, plan
from holdfast.ontology.types.refs import Place, TypeId

log = telemetry.logger("ontology")

TOUCHED_EVERY = 8
ALL_EVERY = 64
ALL_AFTER_S = 5.0
PARALLEL = 8
FILES = 10
"""A type with this many files is compacted, as far as its tiers have something to merge."""
MOST_READ = 28
"""Requests of a new session: for head, index and a manifest; for each file in the index; two for each commit since."""


class AutoCompaction:
    def __init__(self, store: Store, ambient: Ambient, chain: Chain) -> None:
        self._compactor = Compactor(store, ambient, chain=chain)
        self._due: dict[TypeId, None] = {}
        self._files: dict[TypeId, int] = {}
        self.running: asyncio.Task[None] | None = None

    @property
    def most_files(self) -> int:
        """The number of files of the type that has most."""
        return max(self._files.values(), default=0)

    def note(self, index: Index, ledger: Ledger) -> None:
        """An index was written: compact the type in the background if it has many files. Makes no request."""
        self._files[index.type_id] = len(index.entries)
        if len(index.entries) < FILES or not plan(pieces_of(index.entries, index.type_id), below=ledger.commit_id):
            return
        self._due[index.type_id] = None
        if self.running is None:
            self.running = asyncio.ensure_future(self._compact())

    async def close(self) -> None:
        """Wait until everything that is due is compacted."""
        if self.running is not None:
            await self.running

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
        self.running = None


class Upkeep:
    def __init__(
        self, store: Store, ambient: Ambient, view: View, lock: CommitLock, runtime_id: str, *, compaction: bool = False
    ) -> None:
        self._store = store
        self._ambient = ambient
        self._view = view
        self._lock = lock
        self._catalog = Catalog(store, ambient, runtime_id)
        self._compaction = AutoCompaction(store, ambient, view.chain) if compaction else None
        self._schemas_due = True
        """A commit changed a schema, or the session has not compared schema objects with the chain yet."""
        self._indexes: dict[TypeId, Index] = {}
        """The indexes as this session wrote them."""
        self._touched: set[TypeId] = set()
        self._checkpoints: list[Place] = []
        self._commits = 0
        """Commits since the indexes of all types were written."""
        self._unindexed = 0
        """Commits since the last flush began."""
        self._timer: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[bool] | None = None
        self._flush_lock = asyncio.Lock()
        self.warning: str | None = None
        """Why the last flush failed."""

    def note(self, manifest: Manifest) -> None:
        """A commit of this session is on the chain. Makes no request."""
        self._touched |= manifest.touched
        ends = manifest.summary is not None and any(ref is None for ref in manifest.summary.schemas.values())
        self._schemas_due |= bool(manifest.registered) or ends
        self._commits += 1
        self._unindexed += 1
        if checkpoint_span(manifest.commit_id):
            self._checkpoints.append(manifest.place)
        if self._timer is None:
            self._timer = asyncio.ensure_future(self._flush_later(ALL_AFTER_S))
        if self._commits % TOUCHED_EVERY == 0 and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.ensure_future(self.flush(everything=self._commits >= ALL_EVERY))

    async def catch_up(self) -> None:
        """Wait for upkeep that runs and has fallen behind. Call it before a commit, without the lock."""
        for _ in range(2):  # a flush may begin a compaction
            files, compacting = 0, None
            if self._compaction is not None:
                files, compacting = self._compaction.most_files, self._compaction.running
            running = [task for task in (self._flushing, compacting) if task is not None and not task.done()]
            if not running or 3 + files + 2 * self._unindexed < MOST_READ:
                return
            await asyncio.wait(running)

    async def idle(self) -> None:
        """The session is idle and still holds the lock."""
        if self._touched or self._checkpoints or (self._commits and self._schemas_due):
            await self.flush(everything=False)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            await self._flushing
        if self._commits:
            await self.flush(everything=True)
        if self._compaction is not None:
            await self._compaction.close()

    async def flush(self, *, everything: bool) -> bool:
        """Write what is due; with ``everything`` the indexes of all types. False if that failed, see ``warning``.

        False too, without a warning, if another session holds the lock: it writes all indexes itself.
        """
        async with self._flush_lock:
            try:
                with self._lock.in_use():
                    if not await self._lock.try_acquire():
                        return False
                    self._lock.guard()
                    await self._write(everything=everything)
            except HoldfastError as error:
                self.warning = str(error)
                log.warning("indexes lag behind (%s); readers use the chain, the next flush corrects it", error)
                return False
            self.warning = None
            return True

    async def _write(self, *, everything: bool) -> None:
        if self._schemas_due:
            await self._write_schemas()
        await self._write_indexes(everything=everything)
        while self._checkpoints:
            await self._view.chain.write_checkpoint(self._checkpoints[0])
            del self._checkpoints[0]

    async def _write_schemas(self) -> None:
        self._schemas_due = False  # set before the write, because a commit during it may set it again
        try:
            await self._catalog.sync(self._view.chain, self._view.ledger)
        except BaseException:
            self._schemas_due = True
            raise

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
        async def change(index: Index) -> Index | None:
            if index.watermark > ledger.commit_id and index.watermark <= (await read_head(self._store)).commit_id:
                return None  # a session that knows a later head has written it
            after = await brought_forward(self._view.chain, ledger, index)
            self._lock.guard()
            return None if after == index else after

        known = self._indexes.pop(type_id, None)
        index = await update_index(self._store, self._ambient, type_id, change, known)
        self._indexes[type_id] = index
        if self._compaction is not None and (known is None or index.version != known.version):
            self._compaction.note(index, ledger)

    async def _flush_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._timer = None
        if self._commits:
            await self.flush(everything=True)
