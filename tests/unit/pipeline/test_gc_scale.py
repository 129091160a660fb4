"""What garbage collection holds does not grow with what it looks at."""

import tracemalloc

import pytest

from bench.audit.synthetic import Synthetic
from holdfast.base.ids import Ambient
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.gc import orphans
from holdfast.pipeline.gc.job import Gc
from holdfast.pipeline.options import Env


async def peak(batches: int) -> tuple[int, int]:
    """Bytes at the peak of a plan over so many batches, and how many blobs it looked at."""
    store = Synthetic(batches)
    gc = Gc(Env(store, Ambient.system(), Inline(store)))
    tracemalloc.start()
    try:
        found = await gc.preview({"kinds": ["orphans"]})
        return tracemalloc.get_traced_memory()[1], found["kinds"]["orphans"]["looked"]
    finally:
        tracemalloc.stop()


async def test_memory_is_flat_however_many_blobs_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "WORTH", 1_000)
    small, looked = await peak(2_000)
    large, more = await peak(10_000)
    assert (looked, more) == (2_000, 10_000)
    assert large < 1.5 * small
