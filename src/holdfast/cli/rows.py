"""Result tables on the command line: for people, or as JSON, JSON lines or CSV."""

import base64
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.drafts import replacing
from holdfast.base.errors import Invalid
from holdfast.cli.output import Output, csv_line, json_text
from holdfast.ontology.bulk.files import FileFormat, format_of

BATCH = 1_000
PLACES = 18
"""Of the column of a Decimal."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


Read = Mapping[str, Callable[[str], Any]]
"""What the text of a column means to programs."""


def chosen(out: Output, style: Format | None) -> Format:
    """``--json`` means JSON where nothing else is asked for."""
    return style if style is not None else Format.JSON if out.as_json else Format.TABLE


def show(out: Output, found: pa.Table, style: Format | None, *, read: Read | None = None) -> None:
    match chosen(out, style):
        case Format.JSON:
            out.document(list(documents(found, read)))
        case Format.TABLE:
            out.table(found.column_names, _rows(found, cell))
            out.note(f"{found.num_rows} {'row' if found.num_rows == 1 else 'rows'}")
        case plain:
            for line in lines(found, plain, read=read):
                out.escaped(line)


def documents(found: pa.Table, read: Read | None = None) -> Iterator[dict[str, Any]]:
    """Rows as JSON has them."""
    return (_named(found.column_names, row, read or {}) for row in _rows(found, _plain))


def lines(
    found: pa.Table, style: Format, *, read: Read | None = None, header: bool = True, verbatim: bool = False
) -> Iterator[str]:
    """JSON lines, or CSV, which in a file has all characters ``verbatim``."""
    if style is Format.JSONL:
        yield from (json_text(each) for each in documents(found, read))
        return
    if header:
        yield csv_line(found.column_names, verbatim=verbatim)
    yield from (csv_line(row, verbatim=verbatim) for row in _rows(found, _text))


def show_groups(out: Output, groups: Sequence[Mapping[str, Any]], style: Format | None) -> None:
    """Groups and their figures: values of any kind, also of several in one column."""
    names = list(groups[0]) if groups else []
    match chosen(out, style):
        case Format.JSON:
            out.document([{name: _plain(value) for name, value in group.items()} for group in groups])
        case Format.TABLE:
            out.table(names, ([cell(group[name]) for name in names] for group in groups))
            out.note(f"{len(groups)} {'row' if len(groups) == 1 else 'rows'}")
        case plain:
            for line in group_lines(groups, plain):
                out.escaped(line)


def group_lines(groups: Sequence[Mapping[str, Any]], style: Format, *, verbatim: bool = False) -> Iterator[str]:
    """As ``lines``."""
    if style is Format.JSONL:
        for group in groups:
            yield json_text({name: _plain(value) for name, value in group.items()})
        return
    yield csv_line(list(groups[0]) if groups else [], verbatim=verbatim)
    for group in groups:
        yield csv_line([_text(value) for value in group.values()], verbatim=verbatim)


def _named(names: Sequence[str], row: Sequence[Any], read: Read) -> dict[str, Any]:
    values = dict(zip(names, row, strict=True))
    return {name: read[name](one) if name in read and one is not None else one for name, one in values.items()}


def _rows(found: pa.Table, convert: Any) -> Iterator[list[Any]]:
    for batch in found.to_batches(max_chunksize=BATCH):
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield [convert(value) for value in row]


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return int(value) if exponent == 0 else _decimal(value)  # sums of whole numbers are whole
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()  # as the store has it, and as conditions take it
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def _decimal(value: Decimal) -> str:
    """Columns of fields have eighteen places, and who wrote 19.90 does not want to see them all."""
    if value.as_tuple().exponent != -PLACES:
        return str(value)
    return format(value, "f").rstrip("0").rstrip(".")


def _text(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def cell(value: Any) -> Any:
    """For people."""
    plain = _plain(value)
    if isinstance(plain, dict | list):
        return json.dumps(plain, ensure_ascii=False)
    return repr(plain) if isinstance(plain, float) else plain


LINES = {FileFormat.CSV: Format.CSV, FileFormat.JSONL: Format.JSONL}


@dataclass(frozen=True)
class Answers:
    out: Output
    style: Format | None = None
    path: Path | None = None

    def check(self, *, page: bool, stream: bool) -> None:
        """Before anything is read."""
        if self.path is not None:
            self._file(self.path)
        elif page and self.out.as_json and self.style not in (None, Format.JSON):
            raise Invalid("with --json a page is one document, with its cursor", remedy="leave out --format, or --json")
        if stream and self._streamed() is None:
            raise Invalid("a stream is JSON lines or CSV", remedy="say --format jsonl or --format csv")

    def rows(self, found: pa.Table, read: Read | None = None, **told: object) -> None:
        if self.path is None:
            show(self.out, found, self.style, read=read)
            return
        style = self._file(self.path)
        with _draft(self.path) as draft:
            if style in LINES:
                _write_lines(draft, lines(found, LINES[style], read=read, verbatim=True))
            else:
                _write_table(draft, style, found)
        self._told(found.num_rows, **told)

    def page(self, found: pa.Table, read: Read, cursor: str | None, commit_id: int) -> None:
        if self.path is not None:
            self.rows(found, read, commit_id=commit_id, cursor=cursor)
        elif chosen(self.out, self.style) is Format.JSON:
            self.out.document({"rows": list(documents(found, read)), "cursor": cursor, "commit_id": commit_id})
        else:
            show(self.out, found, self.style, read=read)
            onward = "this is the last page" if cursor is None else f"the next page: --after {cursor}"
            self.out.note(f"as of commit {commit_id}; {onward}")

    def single(self, found: pa.Table, read: Read) -> None:
        """A row, or none."""
        if self.path is not None or self.style not in (None, Format.JSON):
            self.rows(found, read)
            return
        row = next(documents(found, read), None)
        if self.out.as_json or self.style is Format.JSON:
            self.out.document(row)
        elif row is None:
            self.out.note("there is none")
        else:
            self.out.record({name: cell(value) for name, value in row.items()})

    def groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        if self.path is None:
            show_groups(self.out, groups, self.style)
            return
        style = self._file(self.path)
        with _draft(self.path) as draft:
            if style in LINES:
                _write_lines(draft, group_lines(groups, LINES[style], verbatim=True))
            else:
                _write_table(draft, style, _table_of(groups))
        self._told(len(groups))

    async def stream(self, pieces: AsyncIterator[pa.Table], read: Read) -> None:
        style, number = self._streamed() or Format.JSONL, 0
        if self.path is None:
            async for piece in pieces:
                for line in lines(piece, style, read=read, header=not number):
                    self.out.escaped(line)
                number += piece.num_rows
            return
        with _draft(self.path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            async for piece in pieces:
                written = lines(piece, style, read=read, header=not number, verbatim=True)
                file.writelines(f"{line}\n" for line in written)
                number += piece.num_rows
        self._told(number)

    def _file(self, path: Path) -> FileFormat:
        wanted = {Format.CSV: FileFormat.CSV, Format.JSONL: FileFormat.JSONL}
        remedy = "name it .parquet, .arrow, .csv or .jsonl, or say --format csv or jsonl"
        if self.style is not None and self.style not in wanted:
            raise Invalid(f"a file is not written as {self.style}", remedy=remedy)
        try:
            return format_of(path, None if self.style is None else wanted[self.style])
        except Invalid as error:
            raise Invalid(str(error), remedy=remedy) from error

    def _streamed(self) -> Format | None:
        """None if it cannot be written line by line."""
        if self.path is not None:
            return LINES.get(self._file(self.path))
        return Format.JSONL if self.style is None else self.style if self.style in LINES.values() else None

    def _told(self, rows: int, **told: object) -> None:
        self.out.record({"rows": rows, **told, "file": str(self.path)})


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    try:
        with replacing(path) as draft:
            yield draft
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}", remedy="name a file that can be written") from error


def _write_lines(path: Path, written: Iterator[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}\n" for line in written)


def _write_table(path: Path, style: FileFormat, found: pa.Table) -> None:
    if style is FileFormat.PARQUET:
        pq.write_table(found, path, compression="zstd")
        return
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, found.schema) as writer:
        writer.write_table(found)


def _table_of(groups: Sequence[Mapping[str, Any]]) -> pa.Table:
    try:
        return pa.Table.from_pylist([dict(group) for group in groups])
    except (pa.ArrowException, OverflowError) as error:
        raise Invalid(
            f"these figures are of no one type each ({error})", remedy="name the file .jsonl or .csv"
        ) from error
