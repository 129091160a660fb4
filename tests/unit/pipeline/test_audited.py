"""The record of an audit: what others may conclude from it."""

from dataclasses import replace

import pytest

from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import CREATE
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.audited import Audited, Scope, latest_complete

FINDING = {"rule": "missing_blob", "severity": "error", "key": "k", "message": "m", "remedy": "r"}
RECORD = Audited(
    "20260101T000000-aa", "pipeline.audit-20260101T000000-aa", ("ingest", "runs"), audited.SCAN, 64, 1, 2, 3,
    {"accepted": 4}, {"missing_blob": 2}, (FINDING,),
)  # fmt: skip


async def test_the_latest_that_judged_a_scope_counts() -> None:
    store = MemoryStore()
    assert await latest_complete(store, Scope.INGEST) is None
    newer = replace(RECORD, audit_id="20260102T000000-bb", scopes=("runs",), through_unix_ns=9)
    cut = replace(RECORD, audit_id="20260103T000000-cc", incomplete={"ingest": "a reason"})
    for each in (RECORD, newer, cut):
        await store.put(each.key, each.encode("w"), CREATE)
    await store.put(audited.began_key("20260104T000000-dd"), b"{}", CREATE)
    assert await latest_complete(store, Scope.INGEST) == RECORD
    assert (await latest_complete(store, Scope.RUNS)) == cut
    assert await latest_complete(store, Scope.BUS) is None
    assert [each.audit_id[:8] async for each in audited.latest(store)] == ["20260103", "20260102", "20260101"]


async def test_a_record_is_read_and_anything_else_is_refused() -> None:
    store = MemoryStore()
    await store.put(RECORD.key, RECORD.encode("w"), CREATE)
    found = await audited.read(store, RECORD.audit_id)
    assert (found, found.good, found.errors) == (RECORD, False, 2)
    with pytest.raises(NotFound, match="there is no audit x"):
        await audited.read(store, "x")
    await store.put(audited.record_key("x"), RECORD.encode("w"), CREATE)
    with pytest.raises(Corrupt, match="not the record of an audit"):
        await audited.read(store, "x")
