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
    async with open_platform("memory:") as hf:
        await field_of(hf)
        for _ in range(2):
            both = ["refused: no connection left", "Connection refused by 10.0.0.7"]
            assert await found(hf, "Connection REFUSED") == both
            assert await found(hf, "refused", severity="error") == both[1:]
            assert await found(hf, "refused", severity=13) == both
            assert await found(hf, "connection", agent="db") == both[:1]
            assert await found(hf, where=["unit=nginx"]) == ["connection closed", both[1]]
            assert await found(hf, "connection", where=["unit=~n.*"], severity=10) == both[1:]
            assert await found(hf, "nothing", where=["unit="], limit=2) == ["nothing happens"] * 2
            assert await found(hf, "refused", until=START + HOUR) == both[1:]
            assert await found(hf, "absent") == []
            assert len(await found(hf)) == 8
            await pipeline.run(hf.store)


async def test_text_phrases_and_regular_expressions_are_found_with_and_without_an_index() -> None:
    async with open_platform("memory:") as hf:
        await field_of(hf)
        refused, closed = "Connection refused by 10.0.0.7", "connection closed"
        for _ in range(2):
            assert await found(hf, contains="ON REFUSED by 10.0") == [refused]
            assert await found(hf, contains="nection ") == ["refused: no connection left", closed, refused]
            assert await found(hf, contains=": no") == ["refused: no connection left"]
            assert await found(hf, contains="refused connection") == []
            assert await found(hf, regex=r"(\d+\.){3}\d$") == [refused]
            assert await found(hf, regex="^connection") == [closed]
            assert await found(hf, "closed", regex="(?i)^CONN", contains="on c") == [closed]
            assert await found(hf, regex="(a*)*(a*)*b|nothing$", agent="quiet", limit=1) == ["nothing happens"] * 0
            await pipeline.run(hf.store)
        whole = await hf.logs().search(contains="on refused by", **SPAN)
        assert (len(whole.rows), whole.read.batches) == (1, 2)  # of 7: those with the word "refused"
        for wrong in ("(", "x" * 2_000, "(?=a)"):
            with pytest.raises(Invalid):
                await hf.logs().search(regex=wrong, **SPAN)


async def test_the_index_leads_to_the_batches_that_may_fit() -> None:
    async with open_platform("memory:") as hf:
        await field_of(hf)
        without = await hf.logs().search("closed", **SPAN)
        await pipeline.run(hf.store)
        indexed = await hf.logs().search("closed", **SPAN)
        nothing = await hf.logs().search("absent", **SPAN)
        assert without.rows == indexed.rows
        assert (without.read.batches, indexed.read.batches, nothing.read.batches) == (7, 1, 0)
        assert indexed.rows[0] == {
            "time_ns": START + 2 * SECOND,
            "agent": "web",
            "boot": "0",
            "seq": 1,
            "severity": 9,
            "labels": {"unit": "nginx"},
            "message": "connection closed",
        }


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
        with pytest.raises(Invalid, match="has no word in it"):
            await found(hf, "% ☃")
    assert [severity_of(each) for each in ("WARN", "0", 24)] == [13, 0, 24]


async def test_more_than_was_asked_for_is_said() -> None:
    async with open_platform("memory:") as hf:
        await field_of(hf)
        assert (await hf.logs().search("nothing", limit=4, **SPAN)).truncated
        assert not (await hf.logs().search("nothing", limit=5, **SPAN)).truncated


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
