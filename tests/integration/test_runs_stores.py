"""Runs on a real store, from the outside: a large result, and blocking code. What is there afterwards is read without
our code.
"""

import hashlib
from typing import Any

import pytest

from holdfast import runs
from tests.integration.run_places import Place
from tests.integration.run_witness import read_entries

LARGE_BYTES = 200 * 2**20


class Crash(BaseException):
    """The process dies here: nothing after it runs, nothing is recorded."""


async def test_a_step_may_return_200_mib(place: Place) -> None:
    dies = True

    def build() -> bytes:
        return hashlib.sha256(b"seed").digest() * (LARGE_BYTES // 32)

    @runs.workflow()
    async def large(ctx: runs.Context) -> str:
        body = await ctx.step("build", build)
        if dies:
            raise Crash
        return hashlib.sha256(body).hexdigest()

    async with place.open() as store:
        with pytest.raises(Crash):
            await large.start(store, run_id="r")
    (payload,) = [key for key in place.keys() if "/payloads/" in key]  # noqa: SIM118  # no dictionary
    dies = False
    async with place.open() as store:
        outcome = await large.start(store, run_id="r")
        assert store.usage.requests("get", "runs") == 2, "the journal and the payload"
    assert outcome.result == hashlib.sha256(build()).hexdigest()
    (entry,) = [entry for entry in read_entries(place.get, "r") if entry["type"] == "step"]
    assert entry["payload"] == {
        "key": payload,
        "bytes": LARGE_BYTES,
        "sha256": outcome.result,
        "encoding": "bytes",
    }
    assert len(place.get("runs/r/journal.jsonl")) < 2_000


@runs.workflow(version="1")
async def greet(ctx: runs.Context, name: str) -> list[Any]:
    return [await ctx.step("greet", str.title, name), await ctx.suspend("go"), await ctx.suspend("mail")]


def test_blocking_code_can_do_all_of_it(place: Place) -> None:
    with place.connect() as hf:
        outcome = hf.start(greet, "ada", run_id="r", tags=["t"])
        assert (outcome.status, outcome.event) == ("suspended", "go")
        with pytest.raises(runs.WrongEvent):
            hf.resume(greet, "r", "mail", 2)
        assert hf.resume(greet, "r", "go", 1).event == "mail"
        hf.deliver("r", "mail", {"n": 2}, key="once")
        hf.deliver("r", "mail", {"n": 2}, key="once")
    with place.connect() as hf:
        assert hf.work([greet], until_idle=True).finished == 1
        assert hf.start(greet, "ada", run_id="r").unwrap() == ["Ada", 1, {"n": 2}]
    assert [entry["type"] for entry in read_entries(place.get, "r")] == [
        *("start", "step", "suspend"),
        *("start", "resume", "suspend"),
        *("start", "resume", "complete"),
    ]
