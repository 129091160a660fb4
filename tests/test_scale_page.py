"""The page on scale says what was counted, and what follows from it."""

import json
from pathlib import Path

from bench.lib import RESULTS
from bench.scale.__main__ import HEADER, requests_of, rows_of
from bench.scale.costs import month, rate
from bench.scale.world import simulate

PAGE = Path(__file__).parent.parent / "docs/operate/scale.md"


def in_page(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_its_tables_are_those_of_the_kept_results() -> None:
    kept = json.loads((RESULTS / "scale.json").read_text())
    text = PAGE.read_text()
    assert in_page(requests_of(kept["idle"], kept["busy"])) in text
    assert in_page([HEADER]) in text
    assert in_page(rows_of(rate(kept["idle"], kept["busy"]))) in text


def test_a_small_fleet_costs_what_the_protocol_says() -> None:
    idle, busy = simulate(0, 1), simulate(5, 1)
    assert busy.batches == 10
    assert idle.rounds == busy.rounds
    assert sum(idle.collectors.requests.values()) == 0
    assert busy.collectors.requests == {"put": 3 * busy.batches}  # bytes, reference and manifest
    assert busy.stored["accepted"][0] == busy.stored["raw-blobs"][0] == busy.batches


def test_ten_times_the_agents_are_ten_times_the_dollars_but_for_idle_rounds() -> None:
    kept = json.loads((RESULTS / "scale.json").read_text())
    cost = rate(kept["idle"], kept["busy"])
    small, large = month(cost, 1_000, 30), month(cost, 10_000, 30)
    assert large.idle == small.idle
    assert round((large.total - large.idle) / (small.total - small.idle), 6) == 10
