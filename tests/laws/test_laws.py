"""Every law on every backend: one client each, many keys, a large body."""

import random

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.objects.cloud.store import LARGE_BYTES
from holdfast.objects.conformance.examination import Examination
from holdfast.objects.conformance.laws import LAWS, ODD_KEYS, Effort, Law
from holdfast.objects.open import backend
from holdfast.objects.uri import StoreSpec

HARD = Effort(races=8, rounds=25, keys=1_200, large_bytes=LARGE_BYTES + 1)
"""Listings of two pages; a large body goes up in parts."""
on_every_backend = pytest.mark.parametrize("spec", ["memory", "local", "s3"], indirect=True)


@on_every_backend
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
async def test_law_is_kept(spec: StoreSpec, law: Law) -> None:
    await check_law(spec, law)
    async with backend(spec) as store:
        assert spec.scheme == "memory" or [page.entries async for page in store.list()] == [()]


async def check_law(spec: StoreSpec, law: Law) -> None:
    async with Examination(spec, effort=HARD, ambient=Ambient(SystemClock(), random.Random(1))) as examination:
        (finding,) = [finding async for finding in examination.findings([law])]
    assert finding.kept, finding.figure
    assert examination.leftovers is None


def test_laws_have_names_promises_and_consequences() -> None:
    assert len({law.name for law in LAWS}) == len(LAWS) == 16
    for law in LAWS:
        assert law.promise.endswith(".")
        assert law.breach


def test_the_odd_keys_include_what_stores_get_wrong() -> None:
    assert max(len(part.encode()) for key in ODD_KEYS for part in key.split("/")) == 255
    assert any(a != b and a.lower() == b.lower() for a in ODD_KEYS for b in ODD_KEYS)
    assert any(not key.isascii() for key in ODD_KEYS)
