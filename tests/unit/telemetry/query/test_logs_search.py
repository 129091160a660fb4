"""Logs are found by words, text, expressions, severity, labels, agent and time, with an index and without it; only
batches that may match are read."""

from typing import Any

import pytest

from holdfast.base.errors import Corrupt, Invalid
from holdfast.platform.open import Holdfast
from holdfast.telemetry.query.logs import severity_of
from holdfast.telemetry.records import Gauge, Log
from holdfast.telemetry.rollup import layout
from tests.unit.pipeline.field import HOUR, SECOND, START, Field
from tests.unit.telemetry.query.desk import before_and_after, platform

SPAN: dict[str, Any] = {"since": START, "until": START + 2 * HOUR}
REFUSED, CLOSED, LEFT = "Connection refused by 10.0.0.7", "connection closed", "refused: no connection left"
QUIET = "nothing happens"
ASKED: list[tuple[list[str], dict[str, Any]]] = [
    ([LEFT, REFUSED], {"words": "Connection REFUSED"}),
    ([REFUSED], {"words": "refused", "severity": "error"}),
    ([LEFT, REFUSED], {"words": "refused", "severity": 13}),
    ([LEFT], {"words": "connection", "agent": "db"}),
    ([CLOSED, REFUSED], {"where": ["unit=nginx"]}),
    ([REFUSED], {"words": "connection", "where": ["unit=~n.*"], "severity": 10}),
    ([QUIET] * 2, {"words": "nothing", "where": ["unit="], "limit": 2}),
    ([REFUSED], {"words": "refused", "until": START + HOUR}),
    ([], {"words": "absent"}),
    ([REFUSED], {"contains": "ON REFUSED by 10.0"}),
    ([LEFT, CLOSED, REFUSED], {"contains": "nection "}),
    ([LEFT], {"contains": ": no"}),
    ([], {"contains": "refused connection"}),
    ([REFUSED], {"regex": r"(\d+\.){3}\d$"}),
    ([CLOSED], {"regex": "^connection"}),
    ([CLOSED], {"words": "closed", "regex": "(?i)^CONN", "contains": "on c"}),
    ([], {"regex": "(a*)*(a*)*b|nothing$", "agent": "quiet"}),
]


async def accept_logs(field: Field) -> None:
    nginx = {"unit": "nginx"}
    web = {0: Log(REFUSED, START + SECOND, 17, nginx), 1: Log(CLOSED, START + 2 * SECOND, 9, nginx)}
    await field.accept("web", "0", web)
    await field.accept("db", "0", {0: Log(LEFT, START + HOUR, 13, {"unit": "pg"})})
    for number in range(5):
        await field.accept("quiet", "0", {number: Log(QUIET, START + number * SECOND, 9)})


async def found(hf: Holdfast, words: str = "", **asked: Any) -> list[str]:
    return [row["message"] for row in (await hf.logs().search(words, **{**SPAN, **asked})).rows]


async def test_logs_are_found_with_and_without_an_index() -> None:
    async with platform() as (hf, field):
        await accept_logs(field)
        async for indexed in before_and_after(hf):
            for expected, asked in ASKED:
                assert await found(hf, **asked) == expected, asked
            assert len(await found(hf)) == 8
            searches = [await hf.logs().search(words, **SPAN) for words in ("closed", "absent")]
            searches.append(await hf.logs().search(contains="on refused by", **SPAN))
            assert [each.read.batches for each in searches] == ([1, 0, 2] if indexed else [7, 7, 7])
            place = {"agent": "web", "boot": "0", "seq": 1, "time_ns": START + 2 * SECOND}
            assert searches[0].rows == [{**place, "severity": 9, "labels": {"unit": "nginx"}, "message": CLOSED}]
        for limit in (4, 5):
            assert (await hf.logs().search("nothing", limit=limit, **SPAN)).truncated == (limit < 5)


async def test_a_log_whose_number_another_batch_has_is_not_found() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {1: Log("one", START), 5: Log("five", START)})
        await field.accept("a", "0", {3: Log("three shared", START), 5: Log("other shared", START)})
        async for _ in before_and_after(hf):
            assert await found(hf, "shared") == ["three shared"]
            assert sorted(await found(hf)) == ["five", "one", "three shared"]


@pytest.mark.parametrize(
    "asked",
    [
        *({"limit": 0}, {"severity": "loud"}, {"severity": 25}, {"until": START}, {"where": ["x"]}, {"words": "% ☃"}),
        *({"regex": "("}, {"regex": "x" * 2_000}, {"regex": "(?=a)"}),
    ],
)
async def test_searches_that_make_no_sense_are_refused(asked: dict[str, Any]) -> None:
    async with platform() as (hf, _):
        with pytest.raises(Invalid):
            await found(hf, **{"words": "x", **asked})
    assert [severity_of(each) for each in ("WARN", "0", 24)] == [13, 0, 24]


async def test_an_index_that_cannot_be_read_is_named() -> None:
    async with platform() as (hf, field):
        await accept_logs(field)
        await field.accept("a", "0", {0: Gauge("g", 1.0, START)})
        async for derived in before_and_after(hf):
            if not derived:
                continue
            keys = [key async for key in hf.store.keys(layout.INDEX)]
            for key in keys:
                await hf.store.put(key, b"PAR1 no more")
            for question in (hf.logs().search("refused", **SPAN), hf.metrics().list(**SPAN)):
                with pytest.raises(Corrupt, match="index/v1"):
                    await question
            await hf.store.delete_many(keys)
            with pytest.raises(Corrupt, match="is missing"):
                await found(hf, "refused")
