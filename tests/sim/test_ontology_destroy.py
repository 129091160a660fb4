"""Erasures, drops and purges beside writers, readers and compactors; and every rule of theirs is needed."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, Self

import pytest

from holdfast.base.errors import Conflict
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.chain.state import Latest, TypeState, latest_rows, read_latest
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.commit.view import View
from holdfast.ontology.feed import Feed
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Entry, read_index
from holdfast.ontology.format.redactions import Redaction
from holdfast.ontology.maintain import erase
from holdfast.ontology.maintain.compact import Compacted, Compactor
from holdfast.ontology.maintain.redact import rewrite
from holdfast.ontology.types.refs import FileRef, TypeId
from holdfast.sim.checkers.ontology import SAME_ROWS
from holdfast.sim.checkers.ontology_destroyed import ENSURED, FOLLOWED, GONE, SILENT
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.ontology import MARK
from holdfast.sim.scenarios.ontology_upkeep import PERSON, OntologyDrop, OntologyErase
from holdfast.sim.world import Process, World

EVERYTHING = RedactionFence(1 << 62)
"""Of a reader that takes files as it finds them."""

# --- others than ours ---


class WithoutWaiting(Compactor):
    """Merges files as they are, while payload is being destroyed."""

    async def begin(self, types: Iterable[TypeId]) -> None:
        latest = (await self._ledger()).redacted
        self._fence = RedactionFence(0 if latest is None else latest.commit_id)


class Unaware(WithoutWaiting):
    """Also publishes what it read before a redaction."""

    async def publish(self, made: Sequence[Compacted]) -> list[Compacted]:
        await self.begin([])
        return await super().publish(made)


@dataclass(frozen=True, kw_only=True)
class Erasing(OntologyErase):
    """With much compaction, and little else."""

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        drawn = super().drawn(rng)
        return replace(drawn, marks=6, compactors=3, compactions=4, commits=2, readers=1, fan=2, idle_ms=20.0)


@dataclass(frozen=True, kw_only=True)
class WhileItIsDestroyed(Erasing):
    compactor: ClassVar[type[Compactor]] = WithoutWaiting


@dataclass(frozen=True, kw_only=True)
class FromBefore(Erasing):
    compactor: ClassVar[type[Compactor]] = Unaware


class Mortal(Compactor):
    """Dies before it deletes snapshots that it could not publish."""

    async def _place(self, type_id: TypeId, snapshots: Sequence[Entry]) -> Collection[str]:
        placed = await super()._place(type_id, snapshots)
        if len(placed) < len(snapshots):
            raise Conflict("killed")
        return placed


@dataclass(frozen=True, kw_only=True)
class WithALook(Erasing):
    compactor: ClassVar[type[Compactor]] = Mortal


@dataclass(frozen=True, kw_only=True)
class WithoutALook(WithALook):
    """No check looks into garbage."""

    def named(self, world: World) -> set[str]:
        return set()


@dataclass(frozen=True, kw_only=True)
class BeforeItIsCommitted(OntologyErase):
    """Destroys first, and commits then; or loses the race, and has destroyed what is current."""

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        return replace(super().drawn(rng), writers=3, commits=4, readers=2, idle_ms=20.0)

    async def destroy(self, process: Process) -> Commit | None:
        found = await erase.preview(process.store, MARK.name, PERSON)
        place = (await read_head(process.store)).place
        redaction = Redaction(MARK, (PERSON,), 1, found.head)
        for ref in await Chain(process.store).files(0, place, checkpoints=False):
            await rewrite(process.store, ref, redaction, 0)
        return await super().destroy(process)


class ManyLives(View):
    """Takes the state of a type that was dropped for that of the one that was begun anew."""

    def _check_life(self, type_id: TypeId) -> None:
        return

    async def _state(self, type_id: TypeId) -> TypeState:
        known = self._states.get(type_id)
        if known is not None:
            known.generation = self.ledger.generation_of(type_id)
        return await super()._state(type_id)


@dataclass(frozen=True, kw_only=True)
class OneStateForAll(OntologyDrop):
    view: ClassVar[type[View]] = ManyLives


@dataclass(frozen=True, kw_only=True)
class TrustingReader(OntologyDrop):
    """Takes an index at its word."""

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        return replace(super().drawn(rng), locked=True, readers=2, commits=5, idle_ms=100.0)

    async def read_at(self, store: Any, chain: Chain, now: Ledger, commit_id: int) -> Latest:
        index = await read_index(store, MARK)
        files = [FileRef(entry.last, MARK, entry.path) for entry in index.entries]
        existing = [ref for ref in files if await store.find(ref.path) is not None]
        rows = await latest_rows(store, existing, newest=commit_id, fence=EVERYTHING)
        return Latest(commit_id, {key: found for key, found in rows.items() if not found[1].retracted})


class _Credulous:
    """Reads files as they are, whatever was destroyed in them and is still to be."""

    async def read_at(self, store: Any, chain: Chain, now: Ledger, commit_id: int) -> Latest:
        life = now.life_at(MARK, commit_id)
        if commit_id == 0 or (life is not None and life.purged):
            return Latest(commit_id, {})
        then = await chain.ledger(await chain.at(now.place, commit_id))
        return await read_latest(store, chain, then, MARK, fence=EVERYTHING)


@dataclass(frozen=True, kw_only=True)
class CredulousOfErasures(_Credulous, OntologyErase):
    @classmethod
    def drawn(cls, rng: Random) -> Self:
        return replace(super().drawn(rng), readers=3, commits=4, marks=5, destroyers=2, idle_ms=20.0, follows=0.0)


@dataclass(frozen=True, kw_only=True)
class CredulousOfPurges(_Credulous, OntologyDrop):
    @classmethod
    def drawn(cls, rng: Random) -> Self:
        drawn = replace(super().drawn(rng), readers=3, commits=4, marks=5, destroyers=2, idle_ms=20.0, follows=0.0)
        return replace(drawn, purges=1.0)


class UnawareFeed(Feed):
    """Goes on at the head that it began with."""

    async def _read(self, ref: FileRef) -> Any:
        self._fence = EVERYTHING
        return await super()._read(ref)


@dataclass(frozen=True, kw_only=True)
class FollowingAsItIs(OntologyDrop):
    feed: ClassVar[type[Feed]] = UnawareFeed

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        drawn = replace(super().drawn(rng), readers=3, commits=4, marks=5, destroyers=2, idle_ms=20.0, follows=1.0)
        return replace(drawn, purges=1.0)


# --- what holds, and what does not ---


def test_with_a_look_at_the_store_nothing_is_silent() -> None:
    runs = [simulate(WithALook, seed) for seed in range(4)]
    assert [(run.seed, run.violations) for run in runs if run.violations] == []


@pytest.mark.parametrize(
    ("kind", "rule", "first"),
    [
        (WhileItIsDestroyed, GONE, 2),
        (FromBefore, GONE, 68),
        (WithoutALook, SILENT, 308),
        (BeforeItIsCommitted, SAME_ROWS, 2),
        (OneStateForAll, ENSURED, 20),
        (TrustingReader, SAME_ROWS, 0),
        (CredulousOfErasures, SAME_ROWS, 6),
        (CredulousOfPurges, SAME_ROWS, 2),
        (FollowingAsItIs, FOLLOWED, 22),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_few_seeds_show_the_harm(kind: type[OntologyErase | OntologyDrop], rule: str, first: int) -> None:
    runs = (simulate(kind, seed) for seed in range(first, first + 150))
    assert any(rule in {each.partition(": ")[0] for each in run.violations} for run in runs)
