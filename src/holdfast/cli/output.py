"""What a command prints: tables and lines for people, JSON for programs, errors as one clear line.

Results go to standard output; progress, hints and errors go to standard error, so a pipe carries results alone. With
``--json`` standard output holds one JSON document per line and an error is one JSON object on standard error.

Text from a store can neither carry markup nor control the terminal. Whatever a command prints, on either stream and
whether or not that is a terminal, goes through ``printable``, ``json_text`` or ``csv_line``, which write control
characters, marks that change the direction of text, and lone surrogates as escapes.

Rich is imported when a table is drawn, not before: it costs more than a whole ``--help``.
"""

import csv
import dataclasses
import enum
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import PurePath
from typing import Any, TextIO

from holdfast.base.clock import iso
from holdfast.base.errors import TABLE, HoldfastError

PIPE_CLOSED = 141  # what a shell reports for a process that SIGPIPE ended
INTERRUPTED = 130  # the same for SIGINT
TERMINATED = 143  # the same for SIGTERM
_HOSTILE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
"""C0, DEL and C1 controls; line separators, marks and overrides of direction; surrogates, which have no bytes."""
_HOSTILE_CHAR = re.compile(f"[{_HOSTILE}]")
_HOSTILE_IN_JSON = re.compile(f"[{_HOSTILE}]".replace("\x00-\x1f", ""))
"""JSON itself escapes the C0 controls within its texts; a line feed outside of them is layout."""
_BACKSLASHES = re.compile(rf"\\+(?=[xu{_HOSTILE}])")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_COLUMN_GAP = 2
NOTHING = object()
_SECOND_NS = 1_000_000_000
_UNBOUNDED = 32_000  # columns; a table in a file or a pipe is not folded to some terminal's width


class PipeClosed(Exception):
    """The reader of standard output has closed the pipe."""


class Terminated(Exception):
    """SIGTERM came, and the command has cleaned up."""


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
        self._write(json_text(value, default=_jsonable))

    def line(self, text: str, *, document: object = NOTHING) -> None:
        """A line for people; with ``--json`` the document, if there is one."""
        if not self.as_json:
            self._write(printable(text))
        elif document is not NOTHING:
            self.document(document)

    def escaped(self, text: str) -> None:
        """A line for programs, from ``json_text`` or ``csv_line``."""
        self._write(text)

    def note(self, text: str) -> None:
        """A remark on standard error; nothing with ``--json``."""
        if not self.as_json:
            print(printable(text), file=self._stderr, flush=True)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        title: str | None = None,
        empty: str | None = None,
        document: object = NOTHING,
    ) -> None:
        """Rows as a table, or with ``--json`` the document: by default one array of objects keyed by column.

        If there are no rows, ``empty`` is noted instead of a bare header.
        """
        if self.as_json:
            keyed = document is NOTHING
            self.document([dict(zip(columns, row, strict=True)) for row in rows] if keyed else document)
            return
        rows = list(rows)
        if not rows and empty is not None:
            self.note(empty)
            return
        from rich.table import Table  # noqa: PLC0415  # slow to import, see above
        from rich.text import Text  # noqa: PLC0415  # as above

        heading = None if title is None else Text(printable(title))
        console = self.console()
        header = [printable(column) for column in columns]
        body = [[_cell(value) for value in row] for row in rows]
        widths = _column_widths([header, *body], console.width)
        if widths is None:
            self._expanded(title, header, body)
            return
        table = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for name, width in zip(header, widths, strict=True):
            table.add_column(Text(name), width=width)
        for row in body:
            table.add_row(*(Text(value, overflow="fold") for value in row))
        self._draw(table, console)

    def records(self, found: Iterable[object], columns: Sequence[str], *, empty: str | None = None) -> None:
        """Result dataclasses as a table of these fields, or with ``--json`` all fields that their ``repr`` shows."""
        found = list(found)
        rows = [[getattr(each, name) for name in columns] for each in found]
        self.table(columns, rows, empty=empty, document=found)

    def _expanded(self, title: str | None, header: Sequence[str], body: Sequence[Sequence[str]]) -> None:
        """Each row as lines of its own: the terminal is too narrow for a table without breaking words."""
        width = max(map(len, header))
        blocks = [
            "\n".join(f"{name.ljust(width)}  {value}" for name, value in zip(header, row, strict=True)) for row in body
        ]
        self._write("\n\n".join([printable(title), *blocks] if title is not None else blocks))

    def record(self, fields: Mapping[str, object], *, document: object = NOTHING) -> None:
        """One thing: ``name  value`` lines, or with ``--json`` the document: by default one object of these fields."""
        if self.as_json:
            self.document(dict(fields) if document is NOTHING else document)
            return
        names = [printable(name) for name in fields]
        width = max(map(len, names), default=0)
        for name, value in zip(names, fields.values(), strict=True):
            self._write(f"{name.ljust(width)}  {_cell(value)}")

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
        """A rich console, for progress displays and drawings of a command's own."""
        from rich.console import Console  # noqa: PLC0415  # slow to import, see above

        stream = self._stderr if stderr else self._stdout
        width = None if stream.isatty() else _UNBOUNDED
        return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)

    def _draw(self, renderable: object, console: Any) -> None:
        with console.capture() as drawing:
            console.print(renderable)
        self._write("\n".join(line.rstrip() for line in drawing.get().splitlines()))

    def _write(self, text: str) -> None:
        try:
            print(text, file=self._stdout, flush=True)
        except BrokenPipeError as error:
            raise PipeClosed from error


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
    return _HOSTILE_CHAR.sub(_escape, text)


def json_text(value: object, **options: Any) -> str:
    """JSON without raw control characters; every JSON parser reads back exactly the same value."""
    return _HOSTILE_IN_JSON.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False, **options)
    )


def csv_line(row: Iterable[str], *, verbatim: bool = False) -> str:
    """A row of CSV. Unless it is for a file, and ``verbatim``, controls other than the line feed are escaped, such as
    ``\\x1b`` or ``\\u202e``. Backslashes before an ``x``, a ``u`` or an escape are doubled, so that this can be undone.
    """
    sink = io.StringIO()
    csv.writer(sink, lineterminator="\r\n").writerow(row)  # what has either of the two is quoted
    line = sink.getvalue().removesuffix("\r\n")
    if verbatim:
        return line
    doubled = _BACKSLASHES.sub(lambda found: found[0] * 2, line)
    return _HOSTILE_CHAR.sub(lambda found: "\n" if found[0] == "\n" else _code(found[0]), doubled)


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or _code(found[0])


def _code(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


def _lines(text: str) -> str:
    """Several lines as such, all but the first indented: no text from a store can look like an error of its own."""
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
