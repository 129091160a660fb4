"""``holdfast onto query``: a type's rows by conditions in words, at any moment."""

import json
from typing import Annotated, Any

import pyarrow as pa
import typer

from holdfast.base.errors import Invalid
from holdfast.cli.rows import Format, show
from holdfast.cli.shell import Shell
from holdfast.cli.sql import moment_of
from holdfast.objects.stack import open_store
from holdfast.ontology import layout
from holdfast.ontology.asked import Wording, arrow_of, understood
from holdfast.ontology.explain import explain
from holdfast.ontology.shape import Shape
from holdfast.ontology.sqltables import SqlTables
from holdfast.ontology.times import When


def query(
    context: typer.Context,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="An entity or relation type.")],
    where: Annotated[str | None, typer.Option(help='Such as: tier == "Gold" and age > 30')] = None,
    as_of: Annotated[str | None, typer.Option(metavar="MOMENT", help="A commit's number, or a time.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Every row that was ever written.")] = False,
    since: Annotated[str | None, typer.Option(metavar="MOMENT", help="Every row written after it.")] = None,
    order_by: Annotated[list[str] | None, typer.Option(help="A field, as in 'age desc'; may be repeated.")] = None,
    columns: Annotated[str | None, typer.Option(help="Fields to show, with commas in between.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    offset: Annotated[int, typer.Option(min=0, help="Leave out so many rows first.")] = 0,
    count: Annotated[bool, typer.Option("--count", help="Only say how many rows there are.")] = False,
    explained: Annotated[bool, typer.Option("--explain", help="Show files, pruning and requests.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="As --explain; run it, and show where time goes.")] = False,
    style: Annotated[Format | None, typer.Option("--format", help="How to print rows.")] = None,
) -> None:
    """Query a type: conditions, order, columns, at any moment."""
    shell = Shell.of(context)
    wording = Wording(
        type_name,
        where,
        tuple(order_by or ()),
        tuple(name.strip() for name in columns.split(",")) if columns else (),
        limit,
        offset,
        _when(as_of, since, history=history),
    )

    async def work() -> None:
        settings = shell.settings
        async with (
            open_store(settings.store.uri, settings=settings, immutable=layout.immutable) as store,
            SqlTables(store, memory_limit=settings.ontology.s3_duckdb_memory_limit) as tables,
        ):
            ask, names = await understood(tables, wording)
            if explained or profile:
                found = await explain(tables.engine, ask, profile=profile)
                if shell.out.as_json:
                    shell.out.document(found.document())
                else:
                    for line in str(found).splitlines():
                        shell.out.line(line)
                return
            answer = await arrow_of(tables.engine, ask, names)
            if count:
                answer = pa.table({"count": [answer.num_rows]})
            show(shell.out, answer, style, read=_nested(ask.shape))

    shell.run(work())


def _when(as_of: str | None, since: str | None, *, history: bool) -> When:
    if since is not None and as_of is not None:
        raise Invalid("--since and --as-of are of two kinds of questions", remedy="give one of them")
    if since is not None:
        return When("history", after=moment_of(since))
    last = None if as_of is None else moment_of(as_of)
    return When("history" if history else "state", last=last)


def _nested(shape: Shape) -> dict[str, Any]:
    """Fields of no simple type are JSON; programs get what it says."""
    return {name: json.loads for name, form in shape.forms.items() if form == "json"}
