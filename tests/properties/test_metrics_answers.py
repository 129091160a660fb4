"""Whatever was accepted, listed and derived, in whatever order: an answer is that of plain Python over the batches."""

import math
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast import pipeline
from holdfast.platform.open import open_platform
from holdfast.telemetry.records import Counter, Gauge, Histogram
from tests.soak import examples
from tests.unit.pipeline.field import HOUR, SECOND, START, Field
from tests.unit.telemetry.query.plain_answers import answers

STEPS = (7 * SECOND, 60 * SECOND, 240 * SECOND, 420 * SECOND, HOUR, 24 * HOUR)
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
    st.sampled_from("mn"), st.sampled_from("01"), st.dictionaries(st.integers(0, 12), records, min_size=1, max_size=8)
)
acts = st.one_of(batches, batches, st.just("reconcile"), st.just("derive"))
asked = st.sampled_from(
    [("g", "avg"), ("g", "last"), ("g", "count"), ("c", "increase"), ("c", "max"), ("h", "avg"), ("h", "rate")]
)


@given(
    st.lists(acts, min_size=1, max_size=7),
    st.lists(asked, min_size=2, max_size=3),
    st.sampled_from(STEPS),
    st.booleans(),
)
@examples(6)
async def test_answers_are_those_of_plain_python(
    course: list[Any], questions: list[tuple[str, str]], step: int, together: bool
) -> None:
    by = ["x"] if together else None
    until = START + 26 * HOUR
    async with open_platform("memory:") as hf:
        field, taken = Field(hf.store), set()
        for act in course:
            if act == "reconcile":
                await pipeline.run(hf.store, ["reconcile"])
            elif act == "derive":
                await pipeline.run(hf.store)
            elif (identity := (*act[:2], min(act[2]), max(act[2]))) not in taken:
                taken.add(identity)
                await field.accept(*act, at_ns=time.time_ns())
        step = max(step, (until - START) // 10_000 // SECOND * SECOND)
        since = START // step * step
        for metric, aggregate in questions:
            expected = answers(field.batches, metric, since, until, step, aggregate, by)
            if not any(metric in batch.texts for batch in field.batches):
                continue
            found = await hf.metrics().query(metric, since=since, until=until, step=step, aggregate=aggregate, by=by)
            got = {
                (tuple(sorted(each.labels.items())), each.kind, at): value
                for each in found.series
                for at, value in zip(each.times_ns, each.values, strict=True)
            }
            assert got.keys() == expected.keys()
            assert all(math.isclose(got[key], expected[key], rel_tol=1e-9, abs_tol=1e-9) for key in got)
