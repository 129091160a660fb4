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

from holdfast.base.errors import Conflict, NotFound
from holdfast.cli.options import Format
from holdfast.cli.output import PipeClosed, csv_line, json_text, span
from holdfast.cli.rows import save, show_rows, show_table
from holdfast.ontology.bulk.transfer import FileFormat
from tests.unit.cli.desk import Streams, Terminal, is_harmless


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        if text:
            raise BrokenPipeError
        return 0


@pytest.mark.parametrize("columns", [20, 50, 55, 115])
def test_no_word_is_broken_on_a_terminal_of_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [("01J9ZK3V5W8N0ABCDEFGHJKMNP", "suspended", "waits for an approval", "1"), ("short", "done", None, "2")]
    terminal = Terminal()
    Streams(stdout=terminal).out.grid(("run", "status", "waits for", "n"), rows)
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
    Streams(stdout=terminal).out.grid(("run", "status"), [("abcdefgh", "done"), ("ijkl", None)])
    assert terminal.getvalue() == "run     abcdefgh\nstatus  done\n\nrun     ijkl\nstatus  -\n"


@dataclass
class Point:
    x: int
    name: str | None = None


def test_results_are_a_table_for_people_and_whole_documents_for_programs() -> None:
    people, program = Streams(), Streams(as_json=True)
    for streams in (people, program):
        streams.out.table([Point(1, "k" * 500), Point(2)], {"double": lambda point: 2 * point.x, "name": "name"})
        streams.out.table([{"a": 1, "b": True}])
        streams.out.table([], ("a",), empty="nothing is there")
        streams.out.record({"name": "x", "ok": True, "ratio": 0.5})
    lines = people.stdout.getvalue().splitlines()
    table = [["double", "name"], ["2", "k" * 500], ["4", "-"], ["a", "b"], ["1", "yes"]]
    assert [line.split() for line in lines[:5]] == table, "in a pipe nothing is folded"
    assert lines[5:] == ["name   x", "ok     yes", "ratio  0.500"]
    assert people.stderr.getvalue() == "nothing is there\n"
    assert [json.loads(line) for line in program.stdout.getvalue().splitlines()] == [
        [{"x": 1, "name": "k" * 500}, {"x": 2, "name": None}],
        [{"a": 1, "b": True}],
        [],
        {"name": "x", "ok": True, "ratio": 0.5},
    ]


def test_an_error_of_several_lines_keeps_them_indented() -> None:
    streams = Streams()
    streams.out.error(Conflict("column 1: no field\n  teir == 1\n  ^\nerror: fake", remedy="look\nhint: fake\x1b"))
    lines = ["error: column 1: no field", "  teir == 1", "  ^", "  error: fake", "hint: look", "  hint: fake\\x1b"]
    assert streams.stderr.getvalue().splitlines() == lines


HOSTILE = "a\x1b[31mb\x9b2Jc\x7fd\u202ee\u2066f\u2028g\r\th\ud800i [bold]no markup[/bold] :smile:"
"""Escape and C1 sequences, DEL, an override and an isolate of direction, a line separator, half a character, markup."""
SHOWN = "a\\x1b[31mb\\x9b2Jc\\x7fd\\u202ee\\u2066f\\u2028g\\r\\th\\ud800i [bold]no markup[/bold] :smile:"


def test_every_form_of_output_escapes_hostile_text() -> None:
    people, program = Streams(), Streams(as_json=True)
    for streams in (people, program):
        streams.out.line(HOSTILE)
        streams.out.note(HOSTILE)
        streams.out.table([{HOSTILE: HOSTILE}])
        streams.out.table([], empty=HOSTILE)
        streams.out.record({HOSTILE: HOSTILE})
        streams.out.document({HOSTILE: [HOSTILE]})
        streams.out.error(NotFound(f"no key {HOSTILE}", remedy=HOSTILE))
        for printed in streams.printed:
            assert is_harmless(printed), ascii(printed)
            printed.encode()
    assert people.stdout.getvalue().count(SHOWN) == 5
    assert people.stderr.getvalue().count(SHOWN) == 4
    documents = [json.loads(line) for line in program.stdout.getvalue().splitlines()]
    assert documents == [[{HOSTILE: HOSTILE}], [], {HOSTILE: HOSTILE}, {HOSTILE: [HOSTILE]}]
    assert json.loads(program.stderr.getvalue())["error"]["message"] == f"no key {HOSTILE}"


ARROW_TEXT = HOSTILE.replace("\ud800", "")  # which no Arrow column holds


@pytest.mark.parametrize("style", list(Format))
def test_every_format_of_rows_escapes_hostile_text(style: Format) -> None:
    for streams in (Streams(), Streams(as_json=True)):
        show_table(streams.out, pa.table({ARROW_TEXT: [ARROW_TEXT, f"two\nlines {ARROW_TEXT}"]}), style)
        show_rows(streams.out, [{ARROW_TEXT: ARROW_TEXT, "n": [ARROW_TEXT]}], style)
        for printed in streams.printed:
            assert is_harmless(printed), ascii(printed)


def test_a_file_of_csv_has_the_text_as_it_is(tmp_path: Path) -> None:
    save(Streams().out, tmp_path / "rows.csv", FileFormat.CSV, pa.table({"name": [ARROW_TEXT]}))
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["name"], [ARROW_TEXT]]


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


@given(st.text(), st.text(st.characters()))
def test_json_is_read_back_as_it_was(name: str, value: str) -> None:
    assert json.loads(json_text({name: [value]})) == {name: [value]}


def test_values_with_a_json_form() -> None:
    class Colour(Enum):
        RED = "red"

    streams = Streams(as_json=True)
    streams.out.document([Point(1), Colour.RED, Path("a"), datetime(2024, 1, 2, tzinfo=UTC)])
    values = [{"x": 1, "name": None}, "red", "a", "2024-01-02T00:00:00+00:00"]
    assert json.loads(streams.stdout.getvalue()) == values
    with pytest.raises(TypeError, match="bytes has no JSON form"):
        streams.out.document(b"raw")


def test_a_closed_pipe_has_an_exception_of_its_own() -> None:
    out = Streams(stdout=ClosedPipe()).out
    with pytest.raises(PipeClosed):
        out.line("x")
    with pytest.raises(PipeClosed):
        out.grid(("a",), [(1,)])


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (0, "0s"), (59, "59s"), (61, "1m"), (7199, "1h"), (86_400 * 40, "40d")]
)
def test_spans_for_people(seconds: int, text: str) -> None:
    assert span(seconds * 10**9) == text
