"""Rollups of any batches are those of the reference: overlaps, duplicates, resets, late samples, equal times, NaN."""

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.telemetry.frame import Batch
from holdfast.telemetry.records import Counter, Gauge, Histogram
from holdfast.telemetry.rollup import chunk, kernel, sketch
from holdfast.telemetry.rollup.kernel import Derived
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import Kind, Unit, UnitManifest
from holdfast.telemetry.rollup.points import telemetry_of
from holdfast.telemetry.rollup.rows import Rows, join_rows, merge_rows, rows_of_points
from tests.unit.telemetry.rollup import plain
from tests.unit.telemetry.rollup.rolled import HOUR, MINUTE, SECOND, agree, as_dict, batch

WINDOWS = (10 * SECOND, MINUTE, 5 * MINUTE, HOUR)
names = st.sampled_from(["a", "b"])
labels = st.sampled_from([{}, {"x": "1"}, {"x": "1", "y": "2"}])
times = st.one_of(st.integers(-20, 20), st.integers(0, 7200)).map(lambda number: number * 5 * SECOND)
numbers = st.one_of(
    st.integers(-50, 50), st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])
)
bounds = st.sampled_from([(1.0, 2.0, 4.0), (1.0, 4.0), (2.0, 3.0), ()])


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    own = draw(bounds)
    counts = draw(st.tuples(*[st.integers(0, 9)] * (len(own) + 1)))
    return Histogram(draw(names), own, counts, draw(st.floats(-100, 100)), draw(times), draw(labels))


samples = st.one_of(
    st.builds(Gauge, names, numbers, times, labels), st.builds(Counter, names, numbers, times, labels), histograms()
)


@st.composite
def some_batches(draw: st.DrawFn) -> list[Batch]:
    """A few agents and boots; ranges overlap, numbers repeat with the same or another record, batches come twice."""
    found: list[Batch] = []
    for agent in draw(st.sampled_from([["m"], ["m", "n"]])):
        for boot in draw(st.sampled_from([["0"], ["1", "0"]])):
            sent = draw(st.dictionaries(st.integers(0, 30), samples, min_size=1, max_size=25))
            for _ in range(draw(st.integers(1, 4))):
                chosen = draw(st.sets(st.sampled_from(sorted(sent)), min_size=1))
                other = draw(st.booleans())
                records: dict[int, Any] = {seq: draw(samples) if other else sent[seq] for seq in chosen}
                if all(
                    (own.seq_start, own.seq_end) != (min(chosen), max(chosen))
                    for own in (each.identity for each in found)
                    if (own.agent_id, own.boot_id) == (agent, boot)
                ):
                    found.append(batch(agent, boot, records))
    return draw(st.permutations(found + found[:1]))


@given(some_batches())
def test_rows_are_those_of_the_reference_in_every_window(batches: list[Batch]) -> None:
    telemetry = telemetry_of(batches)
    found: dict[int, dict] = {window: {} for window in WINDOWS}
    for rows in kernel.rolled(telemetry, WINDOWS):
        found[rows.window_ns] |= as_dict(rows)
    for window in WINDOWS:
        expected = plain.windows(batches, window)
        assert set(found[window]) == set(expected)
        for (series, start), samples_of_window in expected.items():
            agree(found[window][series, start], plain.row(series, samples_of_window))


@given(some_batches(), st.permutations(range(6)))
def test_bytes_do_not_depend_on_the_order_of_batches(batches: list[Batch], order: list[int]) -> None:
    shuffled = [batches[place % len(batches)] for place in order] + batches
    assert _bytes(batches) == _bytes(shuffled)


@given(some_batches())
def test_chunks_give_back_their_rows(batches: list[Batch]) -> None:
    telemetry = telemetry_of(batches)
    for rows in kernel.rolled(telemetry, (MINUTE, HOUR)):
        parts = []
        for metric, own in chunk.by_metric(rows):
            back = chunk.decode(chunk.encode(own), key="k")
            assert {key.name for key in back.series} == {metric}
            assert repr(as_dict(back)) == repr(as_dict(own))
            parts.append(back)
        assert repr(as_dict(join_rows(parts, rows.window_ns))) == repr(as_dict(rows))


@given(some_batches(), st.sampled_from([(0, 3600), (300, 900), (-100, 50)]))
def test_a_range_of_time_gives_the_records_in_it(batches: list[Batch], span: tuple[int, int]) -> None:
    since, until = (each * SECOND for each in span)
    telemetry = telemetry_of(batches, since, until)
    inside = [record for _, record in plain.counted(batches) if since <= record.time_ns < until]
    assert telemetry.records == len(inside)


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_is_within_one_percent_of_the_value_of_its_rank(values: list[float], q: float) -> None:
    column = np.array(values) + 0.0
    found = sketch.of_values(np.zeros(len(column), np.int64), column, 1)
    answer = sketch.quantile(found.keys, found.counts, q, float(column.min()), float(column.max()))
    exact = plain.quantile(column.tolist(), q)
    assert answer == exact or math.isclose(answer, exact, rel_tol=0.01, abs_tol=2.3e-308)


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=40), st.data())
def test_sketches_of_any_division_merge_to_the_same(values: list[float], data: st.DataObject) -> None:
    column = np.array(values)
    groups = np.sort(np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)))))
    parts = sketch.of_values(groups, column, 4)
    merged = sketch.merged(np.zeros(4, np.int64), parts, 1)
    whole = sketch.of_values(np.zeros(len(column), np.int64), column, 1)
    assert (merged.keys.tolist(), merged.counts.tolist()) == (whole.keys.tolist(), whole.counts.tolist())


@given(some_batches())
def test_sketches_of_rows_hold_every_value(batches: list[Batch]) -> None:
    telemetry = telemetry_of(batches)
    expected = plain.windows(batches, HOUR)
    rows = rows_of_points(telemetry.samples, 10 * SECOND)
    for window in WINDOWS[1:]:
        rows = merge_rows(rows, window)
    for place in range(len(rows)):
        name, agent, own, kind, boot = rows.series[int(rows.series_id[place])]
        key = ((name, agent, own, kind, boot), int(rows.start_ns[place]))
        values = np.array([value for _, value in expected[key].values]) + 0.0
        assert _sketch(rows, place) == dict(zip(*np.unique(sketch.keys_of(values), return_counts=True), strict=True))


def _sketch(rows: Rows, place: int) -> dict[int, int]:
    at = np.array([place])
    low, high, count = rows.min[at], rows.max[at], rows.count[at]
    own = rows.sketch.take(at)
    if sketch.is_plain(count, low, high)[0]:
        assert not len(own.keys)
        own = sketch.of_plain(count, low, high)
    return dict(zip(own.keys.tolist(), own.counts.tolist(), strict=True))


def _bytes(batches: list[Batch]) -> list[bytes]:
    found = kernel.rolled(telemetry_of(batches), WINDOWS)
    return [chunk.encode(own) for rows in found for _, own in chunk.by_metric(rows)]


@given(batches=some_batches())
def test_shares_of_agents_give_the_bytes_of_all_at_once(batches: list[Batch]) -> None:
    def made(shares: list[list[Batch]]) -> tuple[dict[str, bytes], UnitManifest]:
        found = Derived(Unit(Kind.ROLLUP, 0, 1, 0, (), "v"), Windows.of(["10s", "1m", "1h"]))
        for share in shares:
            found.add(share)
        return {each.ref.key: each.body for each in found.chunks()}, found.manifest([])

    agents = sorted({each.identity.agent_id for each in batches})
    shares = [[each for each in batches if each.identity.agent_id == agent] for agent in agents]
    assert made(shares) == made([batches])
    counted = made([batches])[1]
    assert sum(last - first + 1 for ranges in counted.numbers.values() for first, last in ranges) == counted.records
