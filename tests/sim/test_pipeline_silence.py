"""Collectors that are killed or paused beside a reconciler that makes no full scan; naive ones lose batches."""

import asyncio
import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import pytest

from holdfast.base.codec import Document
from holdfast.objects.store import ADDRESSED, CREATE, Object, Written
from holdfast.pipeline.checkpoint import Checkpoint
from holdfast.pipeline.jobs.reconcile import Reconcile
from holdfast.sim.faults import Troubles
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.pipeline import FOUND, PipelineSilence
from holdfast.telemetry.accept.collector import Collector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from tests.sim.naive import first_broken, rules


class ReferenceAfter(Collector):
    """Answers first, and writes the reference a second later."""

    async def _prepare(self, attempt: Any) -> Object | None:
        submission = attempt.submission
        created = await self.store.put(submission.blob_key, submission.body, ADDRESSED)
        return None if isinstance(created, Written) else await self.store.find(attempt.draft.key)

    async def _make_findable(self, attempt: Any, manifest: AcceptedManifest, manifest_ns: int | None) -> None:
        if manifest is attempt.draft:
            self._writing = asyncio.create_task(self._refer(attempt))

    async def _refer(self, attempt: Any) -> None:
        await asyncio.sleep(1)
        await self.store.put(attempt.reference.key, attempt.reference.body, CREATE)


class WritesOnce(Collector):
    """Acknowledges however old the reference is."""

    async def _make_findable(self, attempt: Any, manifest: AcceptedManifest, manifest_ns: int | None) -> None:
        pass


class LooksOnce(Reconcile):
    """A reference without a manifest leads nowhere, so it is done with."""

    async def is_due(self) -> bool:
        return True

    async def _reached(self, plan: Document, staged: Document) -> Checkpoint:
        return await super()._reached(plan, {**staged, "waiting": []})


@dataclass(frozen=True, kw_only=True)
class Killed(PipelineSilence):
    """Each world has crashes, and no pauses of minutes."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return replace(super().drawn(rng), slow=False, troubles=Troubles(crashes=2, within_ms=1_500))


@dataclass(frozen=True, kw_only=True)
class Paused(PipelineSilence):
    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return replace(super().drawn(rng), slow=True)


@dataclass(frozen=True, kw_only=True)
class ReferencesAfter(Killed):
    collector: ClassVar[type[Collector]] = ReferenceAfter


@dataclass(frozen=True, kw_only=True)
class OneWrite(Paused):
    collector: ClassVar[type[Collector]] = WritesOnce


@dataclass(frozen=True, kw_only=True)
class NoRecheck(Paused):
    reconcile: ClassVar[Any] = LooksOnce


@pytest.mark.parametrize(("naive", "right"), [(ReferencesAfter, Killed), (OneWrite, Paused), (NoRecheck, Paused)])
def test_a_naive_part_loses_what_was_acknowledged(naive: type[PipelineSilence], right: type[PipelineSilence]) -> None:
    broken = first_broken(naive, range(200))
    assert FOUND in rules(broken)
    assert simulate(right, broken.seed).violations == []
