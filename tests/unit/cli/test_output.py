"""What commands print, for people and for programs."""

import csv
import io
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from holdfast.base.errors import Conflict, NotFound
from holdfast.cli.output import Output, PipeClosed, csv_line, json_text, printable
from holdfast.cli.progress import Checklist, State, Step
from holdfast.cli.rows import Format, save, show, show_groups
from holdfast.ontology.bulk.transfer import FileFormat


class Streams:
    def __init__(self, *, as_json: bool = False) -> None:
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        self.out = Output(as_json=as_json, stdout=self.stdout, stderr=self.stderr)


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        if text:
            raise BrokenPipeError
        return 0


def test_a_table_in_a_pipe_is_not_folded() -> None:
    streams = Streams()
    streams.out.table(("key",), [("k" * 500,)])
    assert "k" * 500 in streams.stdout.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 50, 55, 115])
def test_no_word_is_broken_on_a_terminal_of_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [("01J9ZK3V5W8N0ABCDEFGHJKMNP", "suspended", "waits for an approval", "1"), ("short", "done", None, "2")]
    terminal = Terminal()
    Output(as_json=False, stdout=terminal).table(("run", "status", "waits for", "n"), rows)
    words = re.sub(r"\x1b\[[0-9;]*m", " ", terminal.getvalue()).split()
    for row in rows:
        for cell in row:
            for word in (cell or "-").split():
                assert word in words
    is_table = "run" in terminal.getvalue().splitlines()[0] and "status" in terminal.getvalue().splitlines()[0]
    assert is_table == (columns >= 52)


def test_a_row_that_does_not_fit_has_a_line_for_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    terminal = Terminal()
    Output(as_json=False, stdout=terminal).table(
        ("run", "status"), [("abcdefgh", "done"), ("ijkl", None)], title="runs"
    )
    assert terminal.getvalue() == "runs\n\nrun     abcdefgh\nstatus  done\n\nrun     ijkl\nstatus  -\n"


def test_a_record() -> None:
    people, program = Streams(), Streams(as_json=True)
    for streams in (people, program):
        streams.out.record({"name": "x", "ok": True, "ratio": 0.5})
    assert people.stdout.getvalue() == "name   x\nok     yes\nratio  0.500\n"
    assert json.loads(program.stdout.getvalue()) == {"name": "x", "ok": True, "ratio": 0.5}


def test_an_error_of_several_lines_keeps_them_indented() -> None:
    streams = Streams()
    streams.out.error(Conflict("column 1: no field\n  teir == 1\n  ^\nerror: fake", remedy="look\nhint: fake\x1b"))
    lines = ["error: column 1: no field", "  teir == 1", "  ^", "  error: fake", "hint: look", "  hint: fake\\x1b"]
    assert streams.stderr.getvalue().splitlines() == lines


def test_text_from_a_store_cannot_control_the_terminal() -> None:
    streams = Streams()
    streams.out.table(("key",), [("\x1b[31mred\r\nerror: fake",), ("[bold]not markup[/bold] :smile:",)])
    printed = streams.stdout.getvalue()
    assert "\x1b" not in printed
    assert "\\x1b[31mred\\r\\nerror: fake" in printed
    assert "[bold]not markup[/bold] :smile:" in printed
    assert printable("größe\t") == "größe\\t"


HOSTILE = "a\x1b[31mb\x9b2Jc\x7fd\u202ee\u2066f\u2028g\r\th\ud800i"
"""Escape and C1 sequences, DEL, an override and an isolate of direction, a line separator, half a character."""
SHOWN = "a\\x1b[31mb\\x9b2Jc\\x7fd\\u202ee\\u2066f\\u2028g\\r\\th\\ud800i"


def is_harmless(text: str) -> bool:
    return all(char == "\n" or char.isprintable() for char in text)


def test_every_form_of_output_escapes_hostile_text() -> None:
    people, program = Streams(), Streams(as_json=True)
    for streams in (people, program):
        streams.out.line(HOSTILE)
        streams.out.note(HOSTILE)
        streams.out.table((HOSTILE,), [(HOSTILE,)], title=HOSTILE)
        streams.out.table((HOSTILE,), [], empty=HOSTILE)
        streams.out.record({HOSTILE: HOSTILE})
        streams.out.document({HOSTILE: [HOSTILE]})
        streams.out.error(NotFound(f"no key {HOSTILE}", remedy=HOSTILE))
        for printed in (streams.stdout.getvalue(), streams.stderr.getvalue()):
            assert is_harmless(printed), ascii(printed)
            printed.encode()
    assert people.stderr.getvalue().count(SHOWN) == 4
    documents = [json.loads(line) for line in program.stdout.getvalue().splitlines()]
    assert documents == [[{HOSTILE: HOSTILE}], [], {HOSTILE: HOSTILE}, {HOSTILE: [HOSTILE]}]
    assert json.loads(program.stderr.getvalue())["error"]["message"] == f"no key {HOSTILE}"


@pytest.mark.parametrize("style", list(Format))
def test_every_format_of_rows_escapes_hostile_text(style: Format) -> None:
    text = HOSTILE.replace("\ud800", "")  # which no Arrow column holds
    for streams in (Streams(), Streams(as_json=True)):
        show(streams.out, pa.table({text: [text, f"two\nlines {text}"]}), style)
        show_groups(streams.out, [{text: text, "n": [text]}], style)
        for printed in (streams.stdout.getvalue(), streams.stderr.getvalue()):
            assert is_harmless(printed), ascii(printed)


def read_escaped(cell: str) -> str:
    """As `docs/reference/cli.md` has it."""

    def one(found: re.Match[str]) -> str:
        slashes, kind, digits = found[1], found[2], found[3]
        kept = "\\" * (len(slashes) // 2)
        size = 2 if kind == "x" else 4
        if len(slashes) % 2:
            return kept + chr(int(digits[:size], 16)) + digits[size:]
        return kept + kind + digits

    return re.sub(r"(\\+)([xu])([0-9a-f]{0,4})", one, cell)


@given(st.text(st.sampled_from("xu01ab\\\x1b\u202e\x9b\n\r,\"'é") | st.characters(exclude_categories=["Cs"])))
@example("C:\\users\\x1b")
@example("\\\x1b")
def test_escaped_csv_can_be_read_back(cell: str) -> None:
    line = csv_line([cell, "next"])
    (row,) = csv.reader(io.StringIO(line, newline=""))
    assert [read_escaped(each) for each in row] == [cell, "next"]
    (verbatim,) = csv.reader(io.StringIO(csv_line([cell, "next"], verbatim=True), newline=""))
    assert verbatim == [cell, "next"]


@given(st.text(), st.text(st.characters()))
def test_json_is_read_back_as_it_was(name: str, value: str) -> None:
    assert json.loads(json_text({name: [value]})) == {name: [value]}


def test_a_file_of_csv_has_the_text_as_it_is(tmp_path: Path) -> None:
    text = HOSTILE.replace("\ud800", "")
    save(Streams().out, tmp_path / "rows.csv", FileFormat.CSV, pa.table({"name": [text]}))
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["name"], [text]]


def test_what_lives_on_a_terminal_escapes_hostile_text() -> None:
    checklist = Checklist([Step(HOSTILE, HOSTILE, State.GOOD)], footer=lambda: HOSTILE, notes=[HOSTILE])
    screen = Console(file=io.StringIO(), width=500)
    screen.print(checklist.draw())
    printed = screen.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert is_harmless(printed), ascii(printed)
    assert printed.count(SHOWN) == 4


def test_values_with_a_json_form() -> None:
    class Colour(Enum):
        RED = "red"

    @dataclass
    class Point:
        x: int
        colour: Colour

    streams = Streams(as_json=True)
    streams.out.document([Point(1, Colour.RED), Path("a"), datetime(2024, 1, 2, tzinfo=UTC)])
    assert json.loads(streams.stdout.getvalue()) == [{"x": 1, "colour": "red"}, "a", "2024-01-02T00:00:00+00:00"]
    with pytest.raises(TypeError, match="bytes has no JSON form"):
        streams.out.document(b"raw")


def test_a_closed_pipe_has_an_exception_of_its_own() -> None:
    out = Output(as_json=False, stdout=ClosedPipe())
    with pytest.raises(PipeClosed):
        out.line("x")
    with pytest.raises(PipeClosed):
        out.table(("a",), [(1,)])
