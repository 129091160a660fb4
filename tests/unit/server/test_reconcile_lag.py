"""What a collector tells of a reconciler that others run."""

import json
import math
from pathlib import Path

from holdfast.ingest import layout
from tests.unit.server.server_desk import ServerDesk, server_desk


async def metric(desk: ServerDesk) -> float:
    page = (await desk.private.get("/metrics")).text
    (line,) = [line for line in page.splitlines() if line.startswith("holdfast_reconcile_lag_seconds ")]
    return float(line.split()[1])


async def test_lag_is_told_once_a_reconciler_has_run(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        ready = await desk.get("/readyz")
        assert (ready["reconcile_lag_s"], ready["reconcile_problem"]) == (None, "no reconciler has run")
        assert math.isnan(await metric(desk))
        reconciled, store = desk.service.reconciled, desk.service.store
        for seconds in (90, 30):
            through = desk.service.ambient.clock.wall_ns() - seconds * 1_000_000_000
            await store.put(layout.RECONCILED, json.dumps({"through_unix_ns": through}).encode())
            await reconciled.look()
            ready = await desk.get("/readyz")
            assert seconds <= ready["reconcile_lag_s"] < seconds + 30
            assert ready["reconcile_problem"] is None
            assert seconds <= await metric(desk) < seconds + 30
        before = desk.usage.by_verb["get"]
        await reconciled.look()
        assert desk.usage.by_verb["get"] == before + 1


async def test_a_checkpoint_that_says_nothing_changes_nothing(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        for body in (b"rubbish", b"{}", b'{"through_unix_ns": "soon"}', b'{"through_unix_ns": true}'):
            await desk.service.store.put(layout.RECONCILED, body)
            await desk.service.reconciled.look()
            ready = await desk.get("/readyz")
            assert ready["reconcile_lag_s"] is None
            assert layout.RECONCILED in ready["reconcile_problem"]
