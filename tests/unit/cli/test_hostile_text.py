"""Text from a store that would take over a terminal is shown escaped by every kind of command, in every format."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import runs
from holdfast.bus import Event
from holdfast.cli.main import run
from holdfast.ontology import Entity
from holdfast.ontology import Field as OntologyField
from holdfast.telemetry.records import Gauge, Log
from tests.unit.cli.desk import is_harmless
from tests.unit.pipeline.field import HOUR, START, Field

HOSTILE = "x\x1b]0;owned\x07\x9b2J\x7f\u202e\u2066\r\u2028y"
SPAN = ("--since", "2001-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z")


class Thing(Entity):
    id: OntologyField[str] = OntologyField(primary_key=True)
    name: OntologyField[str]


class Answered(Event):
    text: str


@runs.workflow(version="1")
async def tell(ctx: runs.Context, text: str) -> str:
    await ctx.step("say", str, text)
    await ctx.suspend("answer", question=text)
    return text


@runs.workflow(version="1")
async def stumble(ctx: runs.Context, text: str) -> str:
    await ctx.step("say", str, text)
    raise ValueError(text)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = f"file:{tmp_path_factory.mktemp('hostile') / 'store'}"

    async def fill() -> None:
        async with holdfast.open(address) as hf:
            async with hf.ontology(Thing) as onto:
                onto.ensure([Thing(id=f"t{HOSTILE}", name=HOSTILE), Thing(id="t2", name="plain")])
                await onto.commit(metadata={"why": HOSTILE})
                onto.retract(Thing, "t2")
                await onto.commit(metadata={HOSTILE: [HOSTILE]})
            await hf.bus().publish(Answered(text=HOSTILE))
            await tell.start(hf.store, HOSTILE, run_id="hostile", metadata={"why": HOSTILE})
            await tell.resume(hf.store, "hostile", "answer", HOSTILE)
            await stumble.start(hf.store, HOSTILE, run_id="stumbled")
            await runs.deliver(hf.store, "later", "answer", HOSTILE, key=HOSTILE)
            await hf.store.put("runs/bad\u202e\u2066/journal.jsonl", b"{" + HOSTILE.encode())
            log, gauge = Log(HOSTILE, START, 17, {"unit": HOSTILE}), Gauge("load", 1.0, START, {HOSTILE: HOSTILE})
            await Field(hf.store).accept("web", "0", {0: log, 1: gauge}, at_ns=START + HOUR)

    asyncio.run(fill())
    return address


ANSWERS: list[tuple[str, ...]] = [
    ("onto", "changes"),
    ("onto", "commits", "list"),
    ("onto", "commits", "diff", "0", "1"),
    ("sql", "SELECT * FROM Thing"),
    ("sql", "--format", "csv", "SELECT * FROM Thing"),
    ("sql", "--format", "jsonl", "SELECT * FROM Thing"),
    ("sql", "SELECT chr(27) || 'c' AS \"a\x1b[2J\x9b\""),
    ("events", "list"),
    ("events", "tail", "--once"),
    ("runs", "status", "hostile"),
    ("runs", "status", "stumbled"),
    ("runs", "dump", "hostile"),
    ("runs", "list"),
    ("logs", "search", *SPAN),
    ("logs", "search", "--format", "csv", *SPAN),
    ("metrics", "query", "load", "--step", "1h", "--since", "2025-11-24T00:00:00Z", "--until", "2025-11-25T00:00:00Z"),
    ("metrics", "labels", "load", *SPAN),
]
ERRORS: list[tuple[str, ...]] = [
    ("runs", "status", HOSTILE),
    ("sql", f"SELECT {HOSTILE}"),
    ("events", "inspect", HOSTILE),
    ("metrics", "query", HOSTILE, *SPAN),
    ("runs", "reindex"),
    (HOSTILE,),
]


def asked(uri: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = run([*words, "--store", uri])
    captured = capsys.readouterr()
    for text in captured:
        assert is_harmless(text), ascii(text)
    return code, captured


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_an_answer_shows_hostile_text_escaped(
    words: tuple[str, ...], uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = asked(uri, words, capsys)
    assert code == 0, shown.err
    if words[1] != "list" or words[0] == "onto":
        assert any(escape in shown.out for escape in ("\\x1b", "\\u001b")), shown.out
    code, shown = asked(uri, ("--json", *words), capsys)
    assert code == 0
    if "csv" not in words:
        assert [json.loads(line) for line in shown.out.splitlines()]


@pytest.mark.parametrize("words", ERRORS, ids=ascii)
def test_an_error_shows_hostile_text_escaped(
    words: tuple[str, ...], uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for front in ((), ("--json",), ("--verbose",)):
        code, shown = asked(uri, (*front, *words), capsys)
        assert code != 0
        assert shown.err


def test_what_a_file_is_given_is_not_escaped(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = asked(uri, ("sql", "SELECT * FROM Thing", "--output", str(tmp_path / "things.csv")), capsys)
    assert code == 0
    assert HOSTILE in (tmp_path / "things.csv").read_bytes().decode()
