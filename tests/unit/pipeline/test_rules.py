"""Each rule that drivers follow is needed: the schedule that it is for, with it and without it.

The right part and the naive one go through the same schedule, and the checkers of the simulator judge what landed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Page, Store, Version, Written
from holdfast.pipeline import due
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.jobs.derive import Derive, Outcome
from holdfast.pipeline.jobs.reconcile import TABLES, Reconcile
from holdfast.pipeline.options import Env
from holdfast.pipeline.publish import Draft
from holdfast.sim.checkers.pipeline import COUNTED, GROWING, ONCE, WHOLE, counted, generations
from holdfast.sim.history import Landing
from holdfast.sim.scenarios.pipeline import OPTIONS, Small, Straight, accept
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Kind, read_generation
from tests.unit.pipeline.gc_desk import Before

EARLY = Small("agent", 0, 4, 0)
LATE = Small("agent", 10, 14, 0)
OVERLAPPING = Small("agent", 3, 9, 1)
"""Claims for the numbers 3 and 4 another hour than ``EARLY`` does."""


class Recorded(Layer):
    """Keeps what landed, for the checkers."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.landings: list[Landing] = []

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await super().put(key, body, mode)
        if isinstance(outcome, Written):
            self.landings.append(Landing(len(self.landings), "driver", key, body, outcome.version))
        return outcome


@dataclass
class Ground:
    store: Recorded = field(default_factory=lambda: Recorded(MemoryStore()))
    ambient: Ambient = field(default_factory=Ambient.system)
    batches: list[Small] = field(default_factory=list)

    def env(self, store: Store | None = None) -> Env:
        own = store if store is not None else self.store
        return Env(own, self.ambient, Inline(), OPTIONS)

    async def accept(self, batch: Small) -> None:
        manifest = batch.manifest(self.ambient.clock.wall_ns(), self.ambient.ids.write_id())
        await accept(self.store, batch, manifest, refer=True)
        self.batches.append(batch)

    async def reconcile(self, kind: type[Reconcile] = Reconcile) -> None:
        await kind(self.env()).run(Straight(self.ambient.ids.unique()), {})

    async def rollup(self) -> None:
        await Derive(self.env()).run(Straight(self.ambient.ids.unique()), {})

    def broken(self) -> set[str]:
        """The rules that do not hold."""
        objects = {landing.key: landing.body for landing in self.store.landings if landing.body is not None}
        winners: dict[tuple[str, int], int] = {}
        for batch in sorted(self.batches, key=lambda each: each.start):
            for seq, hour in batch.hours.items():
                winners.setdefault((batch.agent, seq), hour)
        expected: dict[str, dict[tuple[str, int], float]] = {}
        for (agent, seq), hour in winners.items():
            expected.setdefault(layout.hour_path(hour).rstrip("/"), {})[agent, seq] = float(seq)
        answer = [*generations(self.store.landings), *counted(objects, expected)]
        return {violation.rule for violation in answer}


PUBLISHING = "/rollup-"
"""In the key of a generation."""


class OnTopOfAnything(Derive):
    """Publishes an old plan as the next number after whatever is current by then."""

    async def _publish_one(self, draft: Draft, outcome: Outcome) -> int | None:
        current = await read_generation(self._store, Kind.ROLLUP, draft.place.hour)
        number = 0 if current is None else current.number
        return await super()._publish_one(replace(draft, place=replace(draft.place, base=number)), outcome)


class Overwriting(Derive):
    """Puts its generation over the one that is there."""

    async def _publish_one(self, draft: Draft, outcome: Outcome) -> int | None:
        self._store = _Overwrites(self._store)
        return await super()._publish_one(draft, outcome)


class _Overwrites(Layer):
    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await super().put(key, body, OVERWRITE)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [(Derive, set()), (OnTopOfAnything, {GROWING}), (Overwriting, {ONCE})],
    ids=str,
)
async def test_a_plan_is_published_on_top_of_what_it_was_made_from_or_not_at_all(
    kind: type[Derive], broken: set[str]
) -> None:
    ground = Ground()
    await ground.accept(EARLY)
    await ground.reconcile()

    async def others() -> None:
        await ground.accept(LATE)
        await ground.reconcile()
        await ground.rollup()

    # The last object that is staged before anything is published.
    paused = kind(ground.env(Before(ground.store, "/units.json", others)))
    summary = await paused.run(Straight("paused"), {})
    assert bool(summary["superseded"]) == (kind is Derive)
    assert broken <= ground.broken()
    assert broken or not ground.broken()


class Meanwhile(Layer):
    """Lets others work just before a folder is listed."""

    def __init__(self, inner: Store, folder: str, work: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._folder, self._work = folder, [work]

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        if prefix == self._folder and self._work:
            await self._work.pop()()
        async for page in self.inner.list(prefix, after=after, delimiter=delimiter):
            yield page


class Frozen(Layer):
    """Shows a folder as it was."""

    def __init__(self, inner: Store, folder: str, pages: list[Page]) -> None:
        super().__init__(inner)
        self._folder, self._pages = folder, pages

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        if prefix == self._folder:
            for page in self._pages:
                yield page
            return
        async for page in self.inner.list(prefix, after=after, delimiter=delimiter):
            yield page


class ListingsFirst(Derive):
    """Lists an hour before it reads the generation that is current."""

    async def _hours(self, hours: Any, run_id: str) -> Document:
        folder = layout.batches_folder(hours[0])
        before = [page async for page in self._store.list(folder)]
        frozen = Frozen(self._store, folder, before)
        return await Derive(replace(self._env, store=frozen, engine=Inline()))._hours(hours, run_id)


@pytest.mark.parametrize(("kind", "broken"), [(Derive, set()), (ListingsFirst, {GROWING})], ids=str)
async def test_a_planner_reads_the_generation_before_the_listings(kind: type[Derive], broken: set[str]) -> None:
    ground = Ground()
    await ground.accept(EARLY)
    await ground.reconcile()

    async def others() -> None:
        await ground.accept(LATE)
        await ground.reconcile()
        await ground.rollup()

    second = layout.manifest_folder(0) if kind is ListingsFirst else layout.batches_folder(0)
    await kind(ground.env(Meanwhile(ground.store, second, others))).run(Straight("paused"), {})
    assert ground.broken() >= broken
    assert broken or not ground.broken()


class ClearsEverything(Derive):
    """Takes every mark that is there by then for covered."""

    async def _unmark(self, work: Any, kind: Kind, covered: Any) -> None:
        for keys in (await due.marks(self._store, kind)).values():
            await self._store.delete_many(keys)


@pytest.mark.parametrize(("kind", "broken"), [(Derive, set()), (ClearsEverything, {COUNTED})], ids=str)
async def test_only_marks_that_the_plan_saw_are_cleared(kind: type[Derive], broken: set[str]) -> None:
    ground = Ground()
    await ground.accept(EARLY)
    await ground.reconcile()

    async def others() -> None:
        await ground.accept(LATE)
        await ground.reconcile()

    await kind(ground.env(Before(ground.store, PUBLISHING, others))).run(Straight("slow"), {})
    await ground.rollup()
    assert ground.broken() == broken


class Died(Exception):
    """The process is gone."""


class DiesAfter(Layer):
    """A task that dies right after its first write of such a key."""

    def __init__(self, inner: Store, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await super().put(key, body, mode)
        if key.startswith(self._prefix):
            raise Died
        return outcome


class ManifestFirst(Layer):
    """Says that a unit is done, then writes its chunks."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._held: list[tuple[str, bytes, Mode]] = []

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.startswith((layout.ROLLUP, layout.INDEX)):
            self._held.append((key, body, mode))
            return Written(Version("later"))
        outcome = await super().put(key, body, mode)
        for held in self._held:
            await super().put(*held)
        return outcome


@pytest.mark.parametrize(("naive", "broken"), [(False, set()), (True, {WHOLE})])
async def test_the_manifest_of_a_unit_is_written_last(naive: bool, broken: set[str]) -> None:
    ground = Ground()
    await ground.accept(EARLY)
    await ground.reconcile()
    mortal = DiesAfter(ground.store, layout.MANIFESTS if naive else layout.ROLLUP)
    with pytest.raises(Died):
        await Derive(ground.env(ManifestFirst(mortal) if naive else mortal)).run(Straight("mortal"), {})
    await ground.rollup()
    assert ground.broken() == broken


class CheckpointFirst(Reconcile):
    """Moves the checkpoint before it has listed what it found."""

    async def run(self, ctx: Any, request: Document) -> Document:
        plan = await self._plan(request, ctx.run_id)
        await self._publish(plan, {"listings": [], "waiting": [], "given": []}, ctx.run_id)
        return await self._list(plan, ctx.run_id)


@pytest.mark.parametrize(("kind", "broken"), [(Reconcile, set()), (CheckpointFirst, {COUNTED})], ids=str)
@pytest.mark.parametrize("death", ["meta/pipeline/reconcile.json", "meta/pipeline/coverage/", "batches-by-hour/"])
async def test_the_checkpoint_moves_last(kind: type[Reconcile], broken: set[str], death: str) -> None:
    ground = Ground()
    await ground.reconcile()  # the first scan of a store leaves what is young to the next run
    await ground.accept(EARLY)
    with pytest.raises(Died):
        await kind(ground.env(DiesAfter(ground.store, death))).run(Straight("mortal"), {})
    await ground.reconcile()
    await ground.rollup()
    assert ground.broken() == broken


class Blind(Reconcile):
    """Does not look for batches that share numbers."""

    async def _overlaps(self, work: Any, verify: Any) -> None:
        for name in ("around", "others", "reported", "listed"):
            work.empty(name, TABLES[name])


@pytest.mark.parametrize(("kind", "broken"), [(Reconcile, set()), (Blind, {COUNTED})], ids=str)
@pytest.mark.parametrize("apart", [False, True])
async def test_batches_that_share_numbers_stand_in_the_hours_of_both(
    kind: type[Reconcile], broken: set[str], apart: bool
) -> None:
    ground = Ground()
    await ground.accept(EARLY)
    if apart:
        await ground.reconcile(kind)
        await ground.rollup()
    await ground.accept(OVERLAPPING)
    await ground.reconcile(kind)
    await ground.rollup()
    assert ground.broken() == broken
