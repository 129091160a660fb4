"""Logs are found by words, severity, labels, agent and time, with an index and without; only what may fit is read."""

import time
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.errors import Corrupt, Invalid
from holdfast.platform.open import Holdfast, open_platform
from holdfast.telemetry.query.logs import severity_of
from holdfast.telemetry.records import Gauge, Log
from holdfast.telemetry.rollup import layout
from tests.unit.pipeline.field import HOUR, SECOND, START, Field

SPAN: dict[str, Any] = {"since": START, "until": START + 2 * HOUR}


async def field_of(hf: Holdfast) -> Field:
    field = Field(hf.store)
    now = time.time_ns()
    await field.accept(
        "web",
        "0",
        {
            0: Log("Connection refused by 10.0.0.7", START + SECOND, 17, {"unit": "nginx"}),
            1: Log("connection closed", START + 2 * SECOND, 9, {"unit": "nginx"}),
        },
        at_ns=now,
    )
    await field.accept("db", "0", {0: Log("refused: no connection left", START + HOUR, 13, {"unit": "pg"})}, at_ns=now)
    for number in range(5):
        quiet = {number: Log("nothing happens", START + number * SECOND, 9)}
        await field.accept("quiet", "0", quiet, at_ns=now)
    return field


async def found(hf: Holdfast, words: str = "", **asked: Any) -> list[str]:
    return [row["message"] for row in (await hf.logs().search(words, **{**SPAN, **asked})).rows]


async def test_logs_are_found_with_and_without_an_index() -> None:
    refused, closed, left = "Connection refused by 10.0.0.7", "connection closed", "refused: no connection left"
    quiet = "nothing happens"
    asked: list[tuple[list[str], dict[str, Any]]] = [
        ([left, refused], {"words": "Connection REFUSED"}),
        ([refused], {"words": "refused", "severity": "error"}),
        ([left, refused], {"words": "refused", "severity": 13}),
        ([left], {"words": "connection", "agent": "db"}),
        ([closed, refused], {"where": ["unit=nginx"]}),
        ([refused], {"words": "connection", "where": ["unit=~n.*"], "severity": 10}),
        ([quiet] * 2, {"words": "nothing", "where": ["unit="], "limit": 2}),
        ([refused], {"words": "refused", "until": START + HOUR}),
        ([], {"words": "absent"}),
        ([refused], {"contains": "ON REFUSED by 10.0"}),
        ([left, closed, refused], {"contains": "nection "}),
        ([left], {"contains": ": no"}),
        ([], {"contains": "refused connection"}),
        ([refused], {"regex": r"(\d+\.){3}\d$"}),
        ([closed], {"regex": "^connection"}),
        ([closed], {"words": "closed", "regex": "(?i)^CONN", "contains": "on c"}),
        ([], {"regex": "(a*)*(a*)*b|nothing$", "agent": "quiet"}),
    ]
    async with open_platform("memory:") as hf:
        await field_of(hf)
        read = []
        for _ in range(2):
            for expected, words in asked:
                assert await found(hf, **words) == expected, words
            assert len(await found(hf)) == 8
            searches = [await hf.logs().search(words, **SPAN) for words in ("closed", "absent")]
            searches.append(await hf.logs().search(contains="on refused by", **SPAN))
            read.append([each.read.batches for each in searches])
            assert searches[0].rows == [
                {
                    "time_ns": START + 2 * SECOND,
                    "agent": "web",
                    "boot": "0",
                    "seq": 1,
                    "severity": 9,
                    "labels": {"unit": "nginx"},
                    "message": closed,
                }
            ]
            await pipeline.run(hf.store)
        assert read == [[7, 7, 7], [1, 0, 2]]  # with an index, of 7 batches those that have the words
        assert (await hf.logs().search("nothing", limit=4, **SPAN)).truncated
        assert not (await hf.logs().search("nothing", limit=5, **SPAN)).truncated


async def test_a_log_whose_number_another_batch_has_is_not_found() -> None:
    async with open_platform("memory:") as hf:
        field, now = Field(hf.store), time.time_ns()
        await field.accept("a", "0", {1: Log("one", START), 5: Log("five", START)}, at_ns=now)
        await field.accept("a", "0", {3: Log("three shared", START), 5: Log("other shared", START)}, at_ns=now)
        for _ in range(2):
            assert await found(hf, "shared") == ["three shared"]
            assert sorted(await found(hf)) == ["five", "one", "three shared"]
            await pipeline.run(hf.store)


async def test_searches_that_make_no_sense_are_refused() -> None:
    async with open_platform("memory:") as hf:
        for asked in ({"limit": 0}, {"severity": "loud"}, {"severity": 25}, {"until": START}, {"where": ["x"]}):
            with pytest.raises(Invalid):
                await found(hf, "x", **asked)
        for wrong in ("(", "x" * 2_000, "(?=a)"):
            with pytest.raises(Invalid):
                await hf.logs().search(regex=wrong, **SPAN)
        with pytest.raises(Invalid, match="has no word in it"):
            await found(hf, "% ☃")
    assert [severity_of(each) for each in ("WARN", "0", 24)] == [13, 0, 24]


async def test_an_index_that_cannot_be_read_is_named() -> None:
    async with open_platform("memory:") as hf:
        field = await field_of(hf)
        await field.accept("a", "0", {0: Gauge("g", 1.0, START)}, at_ns=time.time_ns())
        await pipeline.run(hf.store)
        keys = [key async for key in hf.store.keys(layout.INDEX)]
        for key in keys:
            await hf.store.put(key, b"PAR1 no more")
        with pytest.raises(Corrupt, match="index/v1"):
            await found(hf, "refused")
        with pytest.raises(Corrupt, match="index/v1"):
            await hf.metrics().list(**SPAN)
        await hf.store.delete_many(keys)
        with pytest.raises(Corrupt, match="is missing"):
            await found(hf, "refused")
