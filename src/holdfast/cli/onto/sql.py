"""``holdfast sql``: types as tables of DuckDB's SQL, read-only; without a statement, a small shell."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.cli.rows import Format, file_format, save, show
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.open import open_store
from holdfast.ontology.chain.history import LATEST, Moment, When
from holdfast.ontology.format import layout
from holdfast.ontology.query.sqltables import SqlTables

app = noun_app()

HISTORY = ".holdfast_sql_history"
HISTORY_LINES = 1_000
KEYWORDS = ("select", "from", "where", "group", "order", "having", "limit", "join", "with", "count", "distinct")
HELP = """\
Statements end with a semicolon. Each type is a table; so are Type__history and Type__as_of_12.
  .tables        the tables           .schema NAME   the columns of a table
  .help          this                 .quit          leave (or Ctrl-D)"""


@app.command()
def sql(
    shell: Shell,
    statement: Annotated[
        str | None,
        typer.Argument(help="SQL statements, separated by ';'. Without any, a shell or standard input."),
    ] = None,
    as_of: Annotated[str | None, typer.Option(metavar="MOMENT", help="A commit's number, a time, or a tag.")] = None,
    style: Annotated[Format | None, typer.Option("--format", help="The format of the output.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to a .parquet, .arrow, .csv or .jsonl file."),
    ] = None,
) -> None:
    """Query types with SQL: every entity and relation type is a table, read-only."""
    file = None if output is None else file_format(output, style)
    text = statement
    if text is None and not sys.stdin.isatty():
        text = sys.stdin.read()  # before the loop runs, so that Ctrl-C ends it

    async def work() -> None:
        settings = shell.settings
        when = LATEST if as_of is None else When(last=moment_of(as_of))
        async with (
            open_store(shell.existing_store(), settings=settings, immutable=layout.immutable) as store,
            SqlTables(store, memory_limit=settings.ontology.s3_duckdb_memory_limit, when=when) as tables,
        ):
            if output is not None and file is not None:
                if text is None:
                    raise Invalid("there is no statement whose result a file could hold", remedy="write one")
                save(shell.out, output, file, await tables.run(text))
            elif text is not None:
                for found in await tables.run_all(text):
                    show(shell.out, found, style)
            else:
                await _converse(shell, tables, style)

    shell.run(work())


def moment_of(text: str) -> Moment:
    return int(text) if text.isascii() and text.isdigit() else text


async def _converse(shell: Shell, tables: SqlTables, style: Format | None) -> None:
    names = list(await tables.tables())
    words = [*names, *(f"{name}__history" for name in names), *KEYWORDS]
    for name in names:
        words += [word for word in await tables.columns(name) if word not in words]
    with _Lines(words) as lines, _Interrupts() as interrupts:
        shell.out.note(f"{len(names)} tables; .help for help")
        while True:
            try:
                text = lines.statement()
            except EOFError:
                return
            if text in (".quit", ".exit"):
                return
            try:
                if not await interrupts.finished(_answer(shell, tables, text, style)):
                    shell.out.note("interrupted")
            except HoldfastError as error:
                shell.out.error(error)


class _Interrupts:
    """While it lasts, Ctrl-C ends the statement that runs, and not the shell."""

    def __init__(self) -> None:
        self._running: asyncio.Task[None] | None = None
        self._before: Any = None

    def __enter__(self) -> "_Interrupts":
        loop = asyncio.get_running_loop()
        self._before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(self._interrupt))
        return self

    def __exit__(self, *details: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def finished(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it came to its end."""
        self._running = asyncio.ensure_future(work)
        try:
            await self._running
        except asyncio.CancelledError:
            shell = asyncio.current_task()
            if shell is not None and shell.cancelling():
                raise
            return False
        finally:
            self._running = None
        return True


async def _answer(shell: Shell, tables: SqlTables, text: str, style: Format | None) -> None:
    if not text.strip(" ;"):
        return
    if text == ".help":
        shell.out.note(HELP)
    elif text == ".tables":
        show(shell.out, await tables.run("show tables"), style)
    elif text.startswith(".schema "):
        show(shell.out, await tables.run(f"describe {text.removeprefix('.schema ').strip()}"), style)
    elif text.startswith("."):
        raise Invalid(f"unknown command {text.split(maxsplit=1)[0]}", remedy=".help lists them")
    else:
        for found in await tables.run_all(text):
            show(shell.out, found, style)


class _Lines:
    """Statements from the terminal, with history and completion where Python has readline."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._readline: Any = None
        self._file = Path.home() / HISTORY

    def __enter__(self) -> "_Lines":
        with suppress(ImportError):
            import readline  # noqa: PLC0415  # not everywhere, and only a shell needs it

            self._readline = readline
            readline.set_completer(self._complete)
            readline.parse_and_bind("tab: complete")
            with suppress(OSError):
                readline.read_history_file(self._file)
        return self

    def __exit__(self, *details: object) -> None:
        if self._readline is not None:
            self._readline.set_history_length(HISTORY_LINES)
            with suppress(OSError):
                self._readline.write_history_file(self._file)

    def _complete(self, begun: str, number: int) -> str | None:
        found = [word for word in self._words if word.lower().startswith(begun.lower())]
        return found[number] if number < len(found) else None

    def statement(self) -> str:
        """The next statement; ``EOFError`` at the end. Ctrl-C forgets what was begun."""
        lines: list[str] = []
        while True:
            try:
                lines.append(_typed("sql> " if not lines else "...> "))
            except KeyboardInterrupt:
                print()
                lines.clear()
                continue
            if lines[0].startswith("."):
                return lines[0].rstrip(" ;")
            if lines[-1].rstrip().endswith(";"):
                return "\n".join(lines).strip()


def _typed(prompt: str) -> str:
    """One line. The loop has nothing else to do meanwhile; its own way with Ctrl-C would wait for the line's end."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    finally:
        signal.signal(signal.SIGINT, before)
