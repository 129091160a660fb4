"""Garbage collection and retention without patience, beside collectors, drivers and late batches: what is referred to
stays, whatever goes wrong; and each rule is needed, for without it a world shows the harm.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import pytest

from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Version, Written
from holdfast.pipeline.gc.sweep import Sweep
from holdfast.sim.checkers.gc import CURRENT, RECORDED
from holdfast.sim.checkers.ingest import RESOLVES
from holdfast.sim.explore import Limits, explore
from holdfast.sim.scenarios.gc import GcDerived, GcOrphans
from holdfast.sim.world import Process
from holdfast.telemetry.accept import expired, layout
from holdfast.telemetry.accept.expired import Expired
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.rollup import layout as metrics
from tests.sim.naive import first_broken, rules

QUIET = Limits(crashes=0, lost_responses=0)


@pytest.mark.parametrize(
    ("scenario", "limits", "at_least"),
    [
        pytest.param(GcOrphans(), QUIET, 40, id="quiet"),
        pytest.param(GcOrphans(proved=True), Limits(0, 0, timeouts=1), 100, id="late"),
        pytest.param(GcOrphans(), Limits(crashes=1, lost_responses=0), 200, id="a crash", marks=pytest.mark.soak),
        pytest.param(GcOrphans(expires=True), QUIET, 20, id="expiry"),
    ],
)
def test_no_course_of_one_acceptor_and_one_collector_of_garbage_loses_bytes(
    scenario: GcOrphans, limits: Limits, at_least: int
) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.states > at_least


@dataclass(frozen=True, kw_only=True)
class AgeAndAuditAlone(GcOrphans):
    """Removes what no manifest names, on the specification's proof."""

    async def sweep_orphans(self, process: Process, out: Sweep) -> None:
        store = process.store
        blobs = [key async for key in store.keys(layout.BLOBS)]
        manifests = [key async for key in store.keys(layout.ACCEPTED)]
        named = {AcceptedManifest.read(await store.get(key)).raw_blob_key for key in manifests}
        for key in blobs:
            if key not in named:
                await out.remove(key, 0, "orphan")


@dataclass(frozen=True, kw_only=True)
class BytesBeforeRecord(GcOrphans):
    """Says that bytes were let go when they are gone."""

    audits: bool = False
    expires: bool = True

    async def let_go(self, store: Store, manifest: AcceptedManifest, out: Sweep) -> None:
        await out.remove(manifest.raw_blob_key, manifest.frame_bytes, "simulated")
        await out.flush()
        await expired.record(store, Expired.of_manifest(manifest, "simulated", ()))


@dataclass(frozen=True, kw_only=True)
class DeletesSilently(GcOrphans):
    audits: bool = False
    expires: bool = True

    async def let_go(self, store: Store, manifest: AcceptedManifest, out: Sweep) -> None:
        await expired.record(store, Expired.of_manifest(manifest, "simulated", ()))
        await store.delete(manifest.raw_blob_key)


@pytest.mark.parametrize(
    ("naive", "harm"),
    [(AgeAndAuditAlone(), RESOLVES), (BytesBeforeRecord(), RESOLVES), (DeletesSilently(), RECORDED)],
    ids=lambda value: type(value).__name__ if isinstance(value, GcOrphans) else "",
)
def test_a_naive_collector_of_garbage_does_harm(naive: GcOrphans, harm: str) -> None:
    found = explore(naive, QUIET).found
    assert found is not None
    assert any(violation.startswith(harm) for violation in found.violations), found.violations


class NoFences(Layer):
    """Fences and seals are not written, and taken for written."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.startswith(metrics.MANIFESTS) and b'"write_id"' in body:
            return Written(Version("nothing"))
        return await super().put(key, body, mode)


@dataclass(frozen=True, kw_only=True)
class Unfenced(GcDerived):
    seen_by_gc: ClassVar[Callable[[Store], Store]] = NoFences

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return replace(super().drawn(rng), expires=False)  # what expiry seals would be missing too


def test_without_a_fence_a_generation_names_what_is_gone() -> None:
    assert CURRENT in rules(first_broken(Unfenced, (19, *range(1000))))  # the race is rare; this seed has it
