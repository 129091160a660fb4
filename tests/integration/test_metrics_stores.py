"""Questions over real stores: odd names, late data, with and without what was derived; the same answers."""

import time
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.platform.open import Holdfast
from holdfast.telemetry.records import Counter, Gauge, Log
from tests.integration.run_places import Place
from tests.unit.pipeline.field import HOUR, SECOND, START, Field

pytestmark = pytest.mark.parametrize("place", ["s3"], indirect=True)

SPAN: dict[str, Any] = {"since": START, "until": START + HOUR}
ODD = "disk/used %~ü bytes:total"


async def test_answers_are_the_same_before_and_after_and_late_data_counts(place: Place) -> None:
    async with place.open() as store:
        hf, field, now = Holdfast(store), Field(store), time.time_ns()
        await field.accept(
            "a", "0", {n: Gauge(ODD, float(n), START + n * SECOND, {"ü": "a/b"}) for n in range(20)}, at_ns=now
        )
        await field.accept("a", "0", {30: Log("disk is full", START, 17), 31: Counter("c", 1, START)}, at_ns=now)

        async def ask() -> list[Any]:
            gauge = await hf.metrics().query(ODD, **SPAN, step="10s", where=["ü=~a/.*"])
            grown = await hf.metrics().query("c", **SPAN, step="1h", aggregate="increase")
            logs = await hf.logs().search("full", **SPAN)
            names = await hf.metrics().list(**SPAN)
            return [gauge.series, grown.series, logs.rows, names.rows]

        before = await ask()
        assert [each.labels for each in before[0]] == [{"agent": "a", "ü": "a/b"}]
        assert before[0][0].values == [4.5, 14.5]
        assert [row["metric"] for row in before[3]] == ["c", ODD]
        await pipeline.run(store)
        assert await ask() == before
        await field.accept("a", "0", {32: Counter("c", 8, START + SECOND)}, at_ns=now)
        late = await ask()
        assert late[1][0].values == [7.0]
        await pipeline.run(store)
        assert await ask() == late
