"""The benchmark of audit and garbage collection: its synthetic store is one that an audit finds good, and as the real
parts would leave it; its garbage is what is collected."""

import hashlib
from pathlib import Path

from bench.audit.__main__ import audit, plan, real, wrap
from bench.audit.synthetic import PREFIXES, Synthetic, frame, identity_of
from holdfast.ingest import layout
from holdfast.objects.memory import MemoryStore
from holdfast.pipeline.audit_spans import divided


async def test_a_synthetic_store_is_good_and_lists_as_one_in_memory() -> None:
    made, same = Synthetic(250), MemoryStore()
    for found in made.every():
        await same.put(found.key, found.body)
    for prefix in PREFIXES:
        assert [key async for key in made.keys(prefix)] == [key async for key in same.keys(prefix)]
        assert await divided(made, "any", prefix, 16) == await divided(same, "any", prefix, 16)
    assert (await made.get(layout.blob_key(hashlib.sha256(frame(7)).hexdigest()))).body == frame(7)
    assert (await made.head(layout.accepted_key(identity_of(7)))).size > 100
    async with wrap(made) as store:
        result = await audit(store, 250 * len(PREFIXES), 250)
        planned = await plan(store, 250 * len(PREFIXES), 0)
    assert result["requests"]["get"] + result["requests"]["head"] >= 250 * 5
    assert planned["requests"]["list"] >= 2


async def test_garbage_among_real_objects_is_planned_and_collected(tmp_path: Path) -> None:
    results = await real(200, tmp_path, None)
    assert list(results["folder, one process"]) == ["audit", "gc plan", "gc apply"]
    assert not list(tmp_path.glob("store/runs/*/payloads/*"))
