"""Where the rows of an answer go: to the terminal, to a program, or into a file, which appears when it is whole."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.drafts import replacing
from holdfast.base.errors import Invalid
from holdfast.cli.output import Output
from holdfast.cli.rows import Format, Read, cell, chosen, documents, group_lines, lines, show, show_groups
from holdfast.ontology.bulk.files import FileFormat, format_of

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
