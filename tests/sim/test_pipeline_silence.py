"""Collectors that are killed or paused beside a reconciler that makes no full scan; naive ones lose batches."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from holdfast.base.codec import Document
from holdfast.objects.store import ADDRESSED, CREATE, Object, Written
from holdfast.pipeline.checkpoint import Checkpoint
from holdfast.pipeline.jobs.reconcile import Reconcile
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.pipeline import FOUND, PipelineSilence
from holdfast.telemetry.accept.collector import Collector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from tests.sim.naive import first_broken, rules


class ReferenceAfter(Collector):
    """Writes the reference after the manifest."""

    async def _prepare(self, attempt: Any) -> Object | None:
        submission = attempt.submission
        created = await self.store.put(submission.blob_key, submission.body, ADDRESSED)
        return None if isinstance(created, Written) else await self.store.find(attempt.draft.key)

    async def _make_findable(self, attempt: Any, manifest: AcceptedManifest, manifest_ns: int | None) -> None:
        if manifest is attempt.draft:
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
class ReferencesAfter(PipelineSilence):
    collector: ClassVar[type[Collector]] = ReferenceAfter


@dataclass(frozen=True, kw_only=True)
class OneWrite(PipelineSilence):
    collector: ClassVar[type[Collector]] = WritesOnce


@dataclass(frozen=True, kw_only=True)
class NoRecheck(PipelineSilence):
    reconcile: ClassVar[Any] = LooksOnce


@pytest.mark.timeout(600)  # it is as fast as the machine
@pytest.mark.parametrize("naive", [ReferencesAfter, OneWrite, NoRecheck])
def test_a_naive_part_loses_what_was_acknowledged(naive: type[PipelineSilence]) -> None:
    broken = first_broken(naive, range(400))
    assert FOUND in rules(broken)
    assert simulate(PipelineSilence, broken.seed).violations == []
