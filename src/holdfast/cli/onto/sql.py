"""``holdfast sql``: types as tables of DuckDB's SQL, read-only; without a statement, a small shell."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.cli import options
from holdfast.cli.options import Format
from holdfast.cli.output import counted
from holdfast.cli.rows import file_format, save, show_table
from holdfast.cli.shell import Shell, noun_app
from holdfast.ontology.chain.history import LATEST, Moment, When
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
    as_of: options.AsOf = None,
    style: options.OutputFormat = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to a .parquet, .arrow, .csv or .jsonl file."),
    ] = None,
) -> None:
    """Query types with SQL: every entity and relation type is a table, read-only."""
    when = LATEST if as_of is None else When(last=moment_of(as_of))
    file = None if output is None else file_format(output, style)
    if statement is None and sys.stdin.isatty():
        if output is not None:
            raise Invalid("there is no statement whose result a file could hold", remedy="write one")
        _converse(shell, when, style)
        return
    text = statement if statement is not None else sys.stdin.read()  # before the loop runs, so that Ctrl-C ends it

    async def answer() -> None:
        async with _tables(shell, when) as tables:
            if output is not None and file is not None:
                save(shell.out, output, file, await tables.run(text))
                return
            for found in await tables.run_all(text):
                show_table(shell.out, found, style)

    shell.run(answer())


def moment_of(text: str) -> Moment:
    return int(text) if text.isascii() and text.isdigit() else text


@asynccontextmanager
async def _tables(shell: Shell, when: When) -> AsyncIterator[SqlTables]:
    limit = shell.settings.ontology.s3_duckdb_memory_limit
    async with shell.open() as hf, SqlTables(hf.store, memory_limit=limit, when=when) as tables:
        yield tables


# --- the shell ---


def _converse(shell: Shell, when: When, style: Format | None) -> None:
    """Answer statements until the end of input.

    Ctrl-C ends the statement that runs, and not the shell: asyncio's ``Runner`` cancels it and raises
    ``KeyboardInterrupt`` here. Lines are read while no loop runs.
    """
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        tables = runner.run(stack.enter_async_context(_tables(shell, when)))
        try:
            shapes = runner.run(tables.tables())
            names = list(shapes)
            columns = {"commit_id", *(name for shape in shapes.values() for name in (*shape.keys, *shape.nodes))}
            with _editing([*names, *(f"{name}__history" for name in names), *sorted(columns), *KEYWORDS]):
                shell.out.note(f"{counted(len(names), 'table')}; .help for help")
                for text in _statements():
                    try:
                        runner.run(_answer(shell, tables, text, style))
                    except KeyboardInterrupt:
                        shell.out.note("interrupted")
                    except HoldfastError as error:
                        shell.out.error(error)
        finally:
            runner.run(stack.aclose())


async def _answer(shell: Shell, tables: SqlTables, text: str, style: Format | None) -> None:
    if not text.strip(" ;"):
        return
    if text == ".help":
        shell.out.note(HELP)
    elif text == ".tables":
        show_table(shell.out, await tables.run("show tables"), style)
    elif text.startswith(".schema "):
        show_table(shell.out, await tables.run(f"describe {text.removeprefix('.schema ').strip()}"), style)
    elif text.startswith("."):
        raise Invalid(f"unknown command {text.split(maxsplit=1)[0]}", remedy=".help lists them")
    else:
        for found in await tables.run_all(text):
            show_table(shell.out, found, style)


def _statements() -> Iterator[str]:
    """Statements and commands from the terminal, until the end of input. Ctrl-C discards the lines of an unfinished
    one."""
    lines: list[str] = []
    while True:
        try:
            lines.append(input("sql> " if not lines else "...> "))
        except KeyboardInterrupt:
            print()
            lines.clear()
            continue
        except EOFError:
            return
        if lines[0].rstrip(" ;") in (".quit", ".exit"):
            return
        if lines[0].startswith(".") or lines[-1].rstrip().endswith(";"):
            text, lines = "\n".join(lines).strip(), []
            yield text.rstrip(" ;") if text.startswith(".") else text


@contextmanager
def _editing(words: Sequence[str]) -> Iterator[None]:
    """History and completion of lines, where Python has readline."""
    try:
        import readline  # noqa: PLC0415  # not everywhere, and only a shell needs it
    except ImportError:
        yield
        return

    def complete(begun: str, number: int) -> str | None:
        found = [word for word in words if word.lower().startswith(begun.lower())]
        return found[number] if number < len(found) else None

    file = Path.home() / HISTORY
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    with suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(HISTORY_LINES)
        with suppress(OSError):
            readline.write_history_file(file)
