"""What commands print, for people and for programs."""

import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import pytest

from holdfast.base.errors import TABLE, Conflict, NotFound
from holdfast.cli.output import Output, PipeClosed, printable


class Streams:
    def __init__(self, *, as_json: bool = False) -> None:
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        self.out = Output(as_json=as_json, stdout=self.stdout, stderr=self.stderr)


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        if text:
            raise BrokenPipeError
        return 0


def test_a_table_for_people() -> None:
    streams = Streams()
    streams.out.table(("key", "size"), [("a/b", 3), ("c", None)], title="objects")
    assert [line.rstrip() for line in streams.stdout.getvalue().splitlines()] == [
        "objects",
        "key  size",
        "a/b  3",
        "c    -",
    ]


def test_a_table_in_a_pipe_is_not_folded() -> None:
    streams = Streams()
    streams.out.table(("key",), [("k" * 500,)])
    assert "k" * 500 in streams.stdout.getvalue()


def test_a_table_for_programs() -> None:
    streams = Streams(as_json=True)
    streams.out.table(("key", "size"), [("a", 3), ("b", None)])
    assert json.loads(streams.stdout.getvalue()) == [{"key": "a", "size": 3}, {"key": "b", "size": None}]


def test_a_record() -> None:
    people, program = Streams(), Streams(as_json=True)
    for streams in (people, program):
        streams.out.record({"name": "x", "ok": True, "ratio": 0.5})
    assert people.stdout.getvalue() == "name   x\nok     yes\nratio  0.500\n"
    assert json.loads(program.stdout.getvalue()) == {"name": "x", "ok": True, "ratio": 0.5}


def test_lines_and_notes_are_for_people_alone() -> None:
    people, program = Streams(), Streams(as_json=True)
    for streams in (people, program):
        streams.out.line("a result")
        streams.out.note("by the way")
    assert (people.stdout.getvalue(), people.stderr.getvalue()) == ("a result\n", "by the way\n")
    assert (program.stdout.getvalue(), program.stderr.getvalue()) == ("", "")


def test_an_error_is_one_line_and_its_remedy() -> None:
    streams = Streams()
    streams.out.error(NotFound("bucket b does not exist", remedy="create it"))
    assert streams.stderr.getvalue() == "error: bucket b does not exist\nhint: create it\n"
    assert streams.stdout.getvalue() == ""


def test_an_error_of_several_lines_keeps_them_indented() -> None:
    streams = Streams()
    streams.out.error(Conflict("column 1: no field\n  teir == 1\n  ^\nerror: fake", remedy="look\nhint: fake\x1b"))
    lines = ["error: column 1: no field", "  teir == 1", "  ^", "  error: fake", "hint: look", "  hint: fake\\x1b"]
    assert streams.stderr.getvalue().splitlines() == lines


def test_an_error_for_programs_is_one_object() -> None:
    streams = Streams(as_json=True)
    streams.out.error(Conflict("key k changed"))
    body = json.loads(streams.stderr.getvalue())["error"]
    assert body["kind"] == "conflict"
    assert body["message"] == "key k changed"
    assert body["exit_code"] == TABLE["conflict"].exit_code
    assert body["remedy"]


def test_text_from_a_store_cannot_control_the_terminal() -> None:
    streams = Streams()
    streams.out.table(("key",), [("\x1b[31mred\r\nerror: fake",), ("[bold]not markup[/bold] :smile:",)])
    printed = streams.stdout.getvalue()
    assert "\x1b" not in printed
    assert "\\x1b[31mred\\r\\nerror: fake" in printed
    assert "[bold]not markup[/bold] :smile:" in printed
    assert printable("größe\t") == "größe\\t"


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


def test_a_closed_pipe_is_told_apart() -> None:
    out = Output(as_json=False, stdout=ClosedPipe())
    with pytest.raises(PipeClosed):
        out.line("x")
    with pytest.raises(PipeClosed):
        out.table(("a",), [(1,)])
