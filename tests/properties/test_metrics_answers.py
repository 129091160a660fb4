"""One question has one answer: live state, batches, rollups before and after merging, and what is kept after batches
have expired all agree with plain Python.

The pipeline runs in this process here; ``tests/spark/test_spark_reads_rollups.py`` has the same on Spark.
"""

import math
import time
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast import pipeline
from holdfast.pipeline import Options
from holdfast.pipeline.gc import GcOptions
from holdfast.platform.open import Holdfast, open_platform
from holdfast.telemetry.accept import layout
from holdfast.telemetry.live.select import LiveQuery, select
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Counter, Gauge, Histogram
from tests.soak import examples
from tests.unit.pipeline.field import HOUR, SECOND, START, Field
from tests.unit.telemetry.query.plain_answers import agree, answers
from tests.unit.telemetry.rollup import plain

STEPS = (7 * SECOND, 60 * SECOND, 240 * SECOND, 420 * SECOND, HOUR, 24 * HOUR)
SMALL = Options(records_per_unit=6, merge_after_ns=1 << 60, gc=GcOptions(raw_batches_ns=1, logs_ns=1))
"""Several units in an hour, which stay apart."""
KEPT = 10 * SECOND
"""The smallest window that is kept of expired batches."""
MERGES, AGAIN = "merges", "again"
ASKED = {"g": ("avg", "last", "count"), "c": ("increase", "max"), "h": ("avg", "count", "rate")}
labels = st.sampled_from([{}, {"x": "1"}, {"x": "2"}])
times = st.integers(0, 25 * 360).map(lambda number: START + number * 10 * SECOND)
records = st.one_of(
    st.builds(Gauge, st.just("g"), st.one_of(st.integers(-9, 9), st.just(math.nan)), times, labels),
    st.builds(Counter, st.just("c"), st.integers(0, 9), times, labels),
    st.builds(
        lambda counts, at: Histogram("h", (1.0, 2.0), counts, float(sum(counts)), at),
        st.tuples(*[st.integers(0, 3)] * 3),
        times,
    ),
)
batches = st.tuples(
    st.sampled_from("mn"), st.sampled_from("012"), st.dictionaries(st.integers(0, 12), records, min_size=1, max_size=8)
)
acts = st.one_of(batches, batches, st.just("reconcile"), st.just("derive"), st.just(MERGES), st.just(AGAIN))
asked = st.sampled_from([(metric, each) for metric, aggregates in ASKED.items() for each in aggregates])


async def act_on(hf: Holdfast, act: str) -> None:
    match act:
        case "reconcile":
            await pipeline.run(hf.store, ["reconcile"], options=SMALL)
        case "derive":
            await pipeline.run(hf.store, options=SMALL)
        case "merges":
            await pipeline.run(hf.store, options=SMALL)
            await pipeline.run(hf.store, options=replace(SMALL, merge_after_ns=0))
        case "again":
            await pipeline.run(hf.store, ["reconcile", "derive"], request={"full": True}, options=SMALL)


async def expire(hf: Holdfast) -> None:
    """All batches of all hours: they are derived, a full scan comes after that, and their bytes go."""
    await act_on(hf, "again")
    await pipeline.run(hf.store, ["reconcile"], request={"full": True}, options=SMALL)
    request = {"kinds": ["expire-batches"], "apply": True}
    await pipeline.run(hf.store, ["gc"], request=request, options=SMALL)
    assert [key async for key in hf.store.keys(layout.BLOBS)] == []


def in_live_state(live: Live, metric: str) -> list[Any]:
    found = select(live.batches(), LiveQuery(name=metric, points=1_000))["series"]
    return sorted(
        (each["agent"], each["boot"], each["kind"], tuple(sorted(each["labels"].items())), at, value_of(value))
        for each in found
        for at, value in each["points"]
    )


def in_batches(field: Field, metric: str) -> list[Any]:
    return sorted(
        (agent, boot, type(each).__name__.lower(), tuple(sorted(each.labels.items())), each.time_ns, value_of(each))
        for (agent, boot, _), each in plain.counted(field.batches)
        if each.name == metric
    )


def value_of(found: Any) -> Any:
    if isinstance(found, Histogram):
        return found.sum, found.counts
    if isinstance(found, dict):
        return found["sum"], tuple(found["counts"])
    number = found.value if isinstance(found, Gauge | Counter) else found
    return "NaN" if isinstance(number, float) and math.isnan(number) else number


@given(
    st.lists(acts, min_size=1, max_size=7),
    st.lists(asked, min_size=2, max_size=3),
    st.sampled_from(STEPS),
    st.booleans(),
    st.booleans(),
)
@examples(6)
async def test_answers_are_those_of_plain_python(
    course: list[Any], questions: list[tuple[str, str]], step: int, together: bool, expires: bool
) -> None:
    by = ["x"] if together else None
    until = START + 26 * HOUR
    async with open_platform("memory:") as hf:
        live = Live(hf.ambient.clock, max_bytes=1 << 24, window_ns=HOUR)
        field, taken = Field(hf.store), set()
        for act in course:
            if isinstance(act, str):
                await act_on(hf, act)
            elif (identity := (*act[:2], min(act[2]), max(act[2]))) not in taken:
                taken.add(identity)
                live.add(await field.accept(*act, at_ns=time.time_ns()), field.batches[-1])
        step = max(step, (until - START) // 10_000 // SECOND * SECOND)
        asked = [each for each in questions if any(each[0] in batch.texts for batch in field.batches)]
        for metric, _ in questions:
            assert in_live_state(live, metric) == in_batches(field, metric)

        async def answered(step: int, given: int) -> None:
            """Steps of ``step`` that are asked for are answered by steps of ``given``."""
            since, end = START // step * step, -(-until // step) * step
            since, end = since // given * given, -(-end // given) * given
            for metric, aggregate in asked:
                found = await hf.metrics().query(
                    metric, since=START, until=until, step=step, aggregate=aggregate, by=by
                )
                assert found.question.step_ns == given
                assert any("were widened" in each for each in found.read.warnings) == (given > step)
                agree(found, answers(field.batches, metric, since, end, given, aggregate, by))

        await answered(step, step)
        if expires and field.batches:
            await expire(hf)
            await answered(step, -(-step // KEPT) * KEPT)
