"""``holdfast onto query``: a type's rows by conditions in words, at any moment. More is asked in SQL."""

import json
import re
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from holdfast.base.errors import Invalid
from holdfast.cli.onto.sql import moment_of
from holdfast.cli.rows import Format, Read, file_format, save, show
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.open import open_store
from holdfast.ontology.chain.times import When
from holdfast.ontology.format import layout
from holdfast.ontology.query.explain import explain
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.query.tabular import arrow_of, counted
from holdfast.ontology.query.text_query import Wording, understood

app = noun_app()
"""The noun with this verb alone: it starts in half the time of all of them."""
_NAMES = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^,`]+?))\s*(?:,|$)")


@app.callback()
def onto() -> None:
    """See typed entities and relations, their commits and their lock."""


@app.command()
async def query(
    shell: Shell,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="An entity or relation type.")],
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help='Such as: tier == "Gold" and age > 30; repeatable, all must hold.'),
    ] = None,
    as_of: Annotated[str | None, typer.Option(metavar="MOMENT", help="A commit's number, a time, or a tag.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A moment after the head is an error.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Every row that was ever written.")] = False,
    since: Annotated[str | None, typer.Option(metavar="MOMENT", help="Every row written after it.")] = None,
    between: Annotated[
        tuple[str, str] | None, typer.Option(metavar="FIRST LAST", help="Every row written from one to the other.")
    ] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD [asc|desc] [nulls first]", help="Such as 'age desc'; nulls come last; repeatable."),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="FIELD,...", help="Fields to show.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="At most so many rows.")] = None,
    offset: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave out so many rows first.", show_default=False)
    ] = 0,
    count: Annotated[bool, typer.Option("--count", help="Only the number of rows.")] = False,
    explained: Annotated[bool, typer.Option("--explain", help="Show files, pruning and requests.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="As --explain; run it, and show where time goes.")] = False,
    style: Annotated[Format | None, typer.Option("--format", help="How to print rows.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Into a .parquet, .arrow, .csv or .jsonl file instead."),
    ] = None,
) -> None:
    """Query a type: conditions, order, columns, at any moment. ``holdfast sql`` has joins, groups and figures."""
    if count and (explained or profile):
        raise Invalid("--count and --explain exclude each other", remedy="give one of them")
    wording = Wording(
        type_name,
        tuple(text for text in where or () if text.strip()),
        tuple(order_by or ()),
        _names(columns or ""),
        limit,
        offset,
        _when(as_of, since, between, history=history, strict=strict),
    )
    file = None if output is None else file_format(output, style)

    settings = shell.settings
    async with (
        open_store(shell.existing_store(), settings=settings, immutable=layout.immutable) as store,
        SqlTables(store, memory_limit=settings.ontology.s3_duckdb_memory_limit) as tables,
    ):
        wanted = await understood(tables, wording)
        if explained or profile:
            found = await explain(tables.engine, wanted.ask, profile=profile)
            if shell.out.as_json:
                shell.out.document(found.document())
            else:
                for line in str(found).splitlines():
                    shell.out.line(line)
            return
        read: Read = {name: json.loads for name, form in wanted.forms.items() if form == "json"}
        if count:
            table = pa.table({"count": [await counted(tables.engine, wanted.ask)]})
        else:
            table = await arrow_of(tables.engine, wanted)
    if output is None or file is None:
        show(shell.out, table, style, read=read)
    else:
        save(shell.out, output, file, table, read)


def _when(
    as_of: str | None, since: str | None, between: tuple[str, str] | None, *, history: bool, strict: bool
) -> When:
    given = {"--as-of": as_of, "--since": since, "--between": between}
    named = [name for name, value in given.items() if value is not None]
    if between is not None and len(named) > 1:
        raise Invalid(f"{' and '.join(named)} exclude each other", remedy="give one of them")
    if between is not None:
        return When("history", first=moment_of(between[0]), last=moment_of(between[1]), strict=strict)
    last, after = (None if each is None else moment_of(each) for each in (as_of, since))
    return When("history" if history or since is not None else "state", last=last, after=after, strict=strict)


def _names(text: str) -> tuple[str, ...]:
    """Names with commas in between; one with odd characters in backquotes."""
    names, place = [], 0
    while place < len(text):
        found = _NAMES.match(text, place)
        if found is None:
            raise Invalid(f"{text!r} does not name columns", remedy="write names with commas in between, as in id,age")
        names.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        place = found.end()
    return tuple(names)
