"""What a collector tells of a reconciler that others run."""

import json
import math
from pathlib import Path

from holdfast import pipeline
from holdfast.base.clock import SystemClock
from holdfast.base.errors import Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import NotModified, Object, Version
from holdfast.server.reconciled import NEVER, NOT_YET, Reconciled
from holdfast.telemetry.accept import layout
from holdfast.telemetry.discover import CHECKPOINT_FORMAT
from tests.unit.server.server_desk import ServerDesk, frame, server_desk


async def metric(desk: ServerDesk) -> float:
    page = (await desk.private.get("/metrics")).text
    (line,) = [line for line in page.splitlines() if line.startswith("holdfast_reconcile_lag_seconds ")]
    return float(line.split()[1])


async def test_lag_is_reported_once_a_reconciler_has_run(tmp_path: Path) -> None:
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


async def test_a_first_scan_that_has_not_ended_says_no_time(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        store, reconciled = desk.service.store, desk.service.reconciled
        assert (await desk.post(frame())).status_code == 200
        checkpoint = {"format": CHECKPOINT_FORMAT, "version": 2, "through_unix_ns": 0}
        await store.put(layout.RECONCILED, json.dumps(checkpoint).encode())
        await reconciled.look()
        ready = await desk.get("/readyz")
        assert (ready["reconcile_lag_s"], ready["reconcile_problem"]) == (None, NOT_YET)
        assert math.isnan(await metric(desk))
        await pipeline.run(store, ["reconcile"])
        await reconciled.look()
        ready = await desk.get("/readyz")
        assert 0 <= ready["reconcile_lag_s"] < 30
        assert ready["reconcile_problem"] is None


class Away(Layer):
    """A store whose reads get no answer for a while."""

    away = False

    async def get(self, key: str) -> Object:
        if self.away:
            raise Unavailable(f"{key}: no answer in time")
        return await super().get(key)

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        if self.away:
            raise Unavailable(f"{key}: no answer in time")
        return await super().get_unless(key, version)


async def test_a_store_that_answers_again_is_no_problem_any_more() -> None:
    store = Away(MemoryStore())
    reconciled = Reconciled(store, SystemClock())

    async def reported(*, away: bool) -> str | None:
        store.away = away
        await reconciled.look()
        return reconciled.problem

    assert "no answer" in (await reported(away=True) or "")
    assert await reported(away=False) == NEVER
    await store.put(layout.RECONCILED, json.dumps({"through_unix_ns": SystemClock().wall_ns()}).encode())
    assert await reported(away=False) is None
    assert "no answer" in (await reported(away=True) or "")
    assert reconciled.lag_s() is not None
    assert await reported(away=False) is None  # the checkpoint is as it was
    await store.put(layout.RECONCILED, b'{"through_unix_ns": "soon"}')
    assert "which is no time" in (await reported(away=False) or "")
    await store.delete(layout.RECONCILED)
    assert await reported(away=False) == NEVER
    assert reconciled.lag_s() is None
