"""What a command prints: tables and lines for people, JSON for programs, errors as one clear line.

Results go to standard output; progress, notes and errors go to standard error, so that a pipe carries results alone.
With ``--json`` standard output has one JSON document per line, and an error is one JSON object on standard error.

Text from a store can neither carry markup nor control the terminal: everything that a command prints, on either stream
and whether or not that is a terminal, goes through ``printable``, ``json_text`` or ``csv_line``. They write control
characters, marks that change the direction of text, and lone surrogates as escapes.

Rich is imported when a table is drawn, not before: importing it takes longer than ``holdfast --help`` does.
"""

import csv
import dataclasses
import enum
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import PurePath
from typing import Any, TextIO

from holdfast.base.clock import iso
from holdfast.base.errors import TABLE, HoldfastError

PIPE_CLOSED = 141  # what a shell reports for a process that SIGPIPE ended
INTERRUPTED = 130  # the same for SIGINT
TERMINATED = 143  # the same for SIGTERM

_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
"""C0, DEL and C1 controls; line separators, marks and overrides of direction; surrogates, which have no bytes."""
_UNSAFE_CHAR = re.compile(f"[{_UNSAFE}]")
_UNSAFE_IN_JSON = re.compile(f"[{_UNSAFE}]".replace("\x00-\x1f", ""))
"""JSON itself escapes the C0 controls within texts; a line feed between them is layout."""
_BACKSLASHES = re.compile(rf"\\+(?=[xu{_UNSAFE}])")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_COLUMN_GAP = 2
_SECOND_NS = 1_000_000_000
_UNBOUNDED = 32_000  # columns; a table in a file or a pipe is not folded to some terminal's width
NOTHING = object()

Columns = Mapping[str, str | Callable[[Any], object]] | Sequence[str]
"""Columns of a table by their titles: each is a field of a result, or a function of it. Fields alone are their own
titles."""


class PipeClosed(Exception):
    """The reader of standard output has closed the pipe."""


class Terminated(Exception):
    """SIGTERM arrived, and the command has cleaned up."""


class Output:
    def __init__(
        self, *, as_json: bool, verbose: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr

    def document(self, value: object) -> None:
        """One JSON document on a line of its own."""
        self.escaped(json_text(value, default=_jsonable))

    def line(self, text: str, *, document: object = NOTHING) -> None:
        """A line for people; with ``--json`` the document, if there is one."""
        if not self.as_json:
            self.escaped(printable(text))
        elif document is not NOTHING:
            self.document(document)

    def escaped(self, text: str) -> None:
        """Lines that ``printable``, ``json_text`` or ``csv_line`` made."""
        try:
            print(text, file=self._stdout, flush=True)
        except BrokenPipeError as error:
            raise PipeClosed from error

    def note(self, text: str) -> None:
        """A remark on standard error; nothing with ``--json``."""
        if not self.as_json:
            print(printable(text), file=self._stderr, flush=True)

    def record(self, fields: Mapping[str, object], *, document: object = NOTHING) -> None:
        """One thing: ``name  value`` lines, or with ``--json`` the document: by default one object of these fields."""
        if self.as_json:
            self.document(dict(fields) if document is NOTHING else document)
            return
        names = [printable(name) for name in fields]
        width = max(map(len, names), default=0)
        for name, value in zip(names, fields.values(), strict=True):
            self.escaped(f"{name.ljust(width)}  {_cell(value)}")

    def table(
        self,
        results: Iterable[Any],
        columns: Columns | None = None,
        *,
        document: Callable[[Any], object] | None = None,
        empty: str | None = None,
    ) -> None:
        """Results as a table, or with ``--json`` as one array of JSON objects.

        A result is a mapping or an object with fields. Its JSON form is what ``document`` returns for it, by default
        all its fields. Columns may be left out if results are mappings: then each key is one. If there are no results,
        ``empty`` is noted in place of a table without rows.
        """
        results = list(results)
        if self.as_json:
            self.document(results if document is None else [document(each) for each in results])
        elif not results and empty is not None:
            self.note(empty)
        elif results or columns is not None:
            columns = results[0].keys() if columns is None else columns
            fields = columns if isinstance(columns, Mapping) else {name: name for name in columns}
            self.grid(list(fields), [[_field(each, field) for field in fields.values()] for each in results])

    def grid(self, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table for people, whatever the format of other output is."""
        from rich.table import Table  # noqa: PLC0415  # slow to import, see above
        from rich.text import Text  # noqa: PLC0415  # as above

        console = self.console()
        titles = [printable(title) for title in titles]
        body = [[_cell(value) for value in row] for row in rows]
        widths = _column_widths([titles, *body], console.width)
        if widths is None:
            self._write_blocks(titles, body)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title, width in zip(titles, widths, strict=True):
            table.add_column(Text(title), width=width)
        for row in body:
            table.add_row(*(Text(value, overflow="fold") for value in row))
        with console.capture() as drawing:
            console.print(table)
        self.escaped("\n".join(line.rstrip() for line in drawing.get().splitlines()))

    def _write_blocks(self, titles: Sequence[str], body: Sequence[Sequence[str]]) -> None:
        """One block of lines per row: the terminal is too narrow for a table without breaking words."""
        width = max(map(len, titles))
        lines = ([f"{title.ljust(width)}  {value}" for title, value in zip(titles, row, strict=True)] for row in body)
        self.escaped("\n\n".join(map("\n".join, lines)))

    def error(self, error: HoldfastError) -> None:
        self.failure(error.kind, str(error), error.remedy)

    def failure(self, kind: str, message: str, remedy: str | None) -> None:
        if self.as_json:
            body: dict[str, object] = {"kind": kind, "message": message, "exit_code": TABLE[kind].exit_code}
            if remedy:
                body["remedy"] = remedy
            text = json_text({"error": body})
        else:
            text = f"error: {_lines(message)}"
            if remedy:
                text += f"\nhint: {_lines(remedy)}"
        print(text, file=self._stderr, flush=True)

    def console(self, *, stderr: bool = False) -> Any:
        """A rich console, for tables, progress displays and drawings."""
        from rich.console import Console  # noqa: PLC0415  # slow to import, see above

        stream = self._stderr if stderr else self._stdout
        width = None if stream.isatty() else _UNBOUNDED
        return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def _field(result: Any, field: str | Callable[[Any], object]) -> object:
    if callable(field):
        return field(result)
    return result.get(field) if isinstance(result, Mapping) else getattr(result, field)


def _column_widths(rows: Sequence[Sequence[str]], available: int) -> list[int] | None:
    """Widths at which the rows fit between words, the widest columns narrowed first; None if no such widths fit."""
    from rich.cells import cell_len  # noqa: PLC0415  # slow to import, see above

    columns = list(zip(*rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    least = [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    excess = sum(widths) + _COLUMN_GAP * (len(widths) - 1) - available
    while excess > 0:
        narrowable = [index for index, width in enumerate(widths) if width > least[index]]
        if not narrowable:
            return None
        widest = max(narrowable, key=widths.__getitem__)
        widths[widest] -= 1
        excess -= 1
    return widths


def silence_stdout() -> None:
    """Redirect standard output to the null device, so that the interpreter's last flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def printable(text: str) -> str:
    """One line for people: a key or a value cannot move the cursor, add a line or change the direction of text."""
    return _UNSAFE_CHAR.sub(_escape, text)


def json_text(value: object, **options: Any) -> str:
    """JSON without raw control characters; every JSON parser reads back exactly the same value."""
    return _UNSAFE_IN_JSON.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False, **options)
    )


def csv_line(row: Iterable[str], *, verbatim: bool = False) -> str:
    """A row of CSV. Unless it is for a file, and ``verbatim``, controls other than the line feed are escaped, such as
    ``\\x1b`` or ``\\u202e``. Backslashes before an ``x``, a ``u`` or an escape are doubled, so that this can be undone.
    """
    sink = io.StringIO()
    csv.writer(sink, lineterminator="\r\n").writerow(row)  # a cell with either of the two is quoted
    line = sink.getvalue().removesuffix("\r\n")
    if verbatim:
        return line
    doubled = _BACKSLASHES.sub(lambda found: found[0] * 2, line)
    return _UNSAFE_CHAR.sub(lambda found: "\n" if found[0] == "\n" else _code(found[0]), doubled)


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or _code(found[0])


def _code(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


def _lines(text: str) -> str:
    """All lines of the text but the first indented: no text from a store can look like an error of its own."""
    first, *more = (printable(line) for line in text.split("\n"))
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in more)])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, tuple | list):
        return ", ".join(map(_cell, value)) or "-"
    return printable(str(value))


def _jsonable(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.repr}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def counted(number: int, one: str, many: str | None = None) -> str:
    """``1 record``, ``2 records``."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def span(length_ns: int) -> str:
    """A span in its largest unit: ``45s``, ``3m``, ``2h``, ``5d``."""
    seconds = max(0, length_ns) // _SECOND_NS
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def clock_time(moment_ns: int) -> str:
    """UTC to the second."""
    return iso(moment_ns)[:19] + "Z"
