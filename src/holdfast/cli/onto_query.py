"""``holdfast onto query``: a type's rows by conditions in words, at any moment."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import typer

from holdfast.base.errors import Invalid
from holdfast.cli.rows import Format, show, show_groups
from holdfast.cli.shell import Shell
from holdfast.cli.sql import moment_of
from holdfast.objects.stack import open_store
from holdfast.ontology import layout
from holdfast.ontology.asked import (
    Wording,
    arrow_of,
    counted,
    difference_in_words,
    figures_in_words,
    understood,
    way_in_words,
)
from holdfast.ontology.explain import explain
from holdfast.ontology.shape import Shape
from holdfast.ontology.sqltables import SqlTables
from holdfast.ontology.times import LATEST, When


def query(
    context: typer.Context,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="An entity or relation type.")],
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help='Such as: tier == "Gold" and age > 30')] = None,
    via: Annotated[
        list[str] | None,
        typer.Option(help="Follow a relation, as in 'Knows depth 1..3 where since > 2000 to age > 30'; repeatable."),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="HOP", help="The shortest way along a relation, as in 'Knows to name == \"Ada\"'."),
    ] = None,
    as_of: Annotated[str | None, typer.Option(metavar="MOMENT", help="A commit's number, a time, or a tag.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Every row that was ever written.")] = False,
    since: Annotated[str | None, typer.Option(metavar="MOMENT", help="Every row written after it.")] = None,
    between: Annotated[
        tuple[str, str] | None, typer.Option(metavar="FIRST LAST", help="Every row written from one to the other.")
    ] = None,
    diff: Annotated[
        tuple[str, str] | None, typer.Option(metavar="OLDER NEWER", help="What is not the same at two moments.")
    ] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD [asc|desc]", help="A field, as in 'age desc'; ascending by itself; repeatable."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Fields to show, with commas in between.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    offset: Annotated[int, typer.Option(min=0, help="Leave out so many rows first.")] = 0,
    count: Annotated[bool, typer.Option("--count", help="Only say how many rows there are.")] = False,
    figures: Annotated[
        list[str] | None, typer.Option("--agg", help="A figure, as in 'n=count()' or 'avg(age)'; repeatable.")
    ] = None,
    group_by: Annotated[list[str] | None, typer.Option(help="A field: a row per value; repeatable.")] = None,
    having: Annotated[list[str] | None, typer.Option(help="Only groups like that, as in 'n > 5'; repeatable.")] = None,
    explained: Annotated[bool, typer.Option("--explain", help="Show files, pruning and requests.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="As --explain; run it, and show where time goes.")] = False,
    style: Annotated[Format | None, typer.Option("--format", help="How to print rows.")] = None,
) -> None:
    """Query a type: conditions, hops, order, columns, figures, at any moment."""
    shell = Shell.of(context)
    wording = Wording(
        type_name,
        where,
        tuple(order_by or ()),
        tuple(name.strip() for name in columns.split(",")) if columns else (),
        limit,
        offset,
        _when(as_of, since, between, history=history),
        tuple(via or ()),
        tuple(group_by or ()),
        tuple(figures or ()),
        tuple(having or ()),
    )
    asked = Asked(wording, count=count, path=path, diff=diff, explained=explained or profile, profile=profile)
    asked.check()
    shell.run(_work(shell, asked, style))


@dataclass(frozen=True)
class Asked:
    """What is wanted of a question in words."""

    wording: Wording
    count: bool
    path: str | None
    diff: tuple[str, str] | None
    explained: bool
    profile: bool

    @property
    def figures(self) -> bool:
        return bool(self.wording.figures or self.wording.group_by or self.wording.having)

    def check(self) -> None:
        kinds = {"--agg, --group-by or --having": self.figures, "--diff": self.diff is not None, "--count": self.count}
        kinds |= {"--path": self.path is not None, "--explain": self.explained}
        given = [name for name, is_given in kinds.items() if is_given]
        if len(given) > 1:
            raise Invalid(f"{' and '.join(given)} are of two kinds of questions", remedy="give one of them")
        if (self.figures or self.diff) and (self.wording.order_by or self.wording.columns):
            raise Invalid(f"{given[0]} has an order and columns of its own", remedy="leave these options out")
        if self.diff is not None and self.wording.when != LATEST:
            raise Invalid("--diff names its moments itself", remedy="give --where and --via besides it")


async def _work(shell: Shell, asked: Asked, style: Format | None) -> None:
    settings, wording = shell.settings, asked.wording
    async with (
        open_store(settings.store.uri, settings=settings, immutable=layout.immutable) as store,
        SqlTables(store, memory_limit=settings.ontology.s3_duckdb_memory_limit) as tables,
    ):
        if asked.figures:
            show_groups(shell.out, await figures_in_words(tables, wording), style)
            return
        if asked.diff is not None:
            moments = [moment_of(each) for each in asked.diff]
            found = await difference_in_words(tables, wording, moments[0], moments[1])
            show(shell.out, found, style, read={"before": json.loads, "after": json.loads})
            return
        if asked.path is not None:
            found = await way_in_words(tables, wording, asked.path)
            show(shell.out, found, style, read=_nested((await understood(tables, wording))[0].shape))
            return
        ask, names = await understood(tables, wording)
        if asked.explained:
            told = await explain(tables.engine, ask, profile=asked.profile)
            if shell.out.as_json:
                shell.out.document(told.document())
            else:
                for line in str(told).splitlines():
                    shell.out.line(line)
            return
        if asked.count:
            show(shell.out, pa.table({"count": [await counted(tables.engine, ask)]}), style)
            return
        show(shell.out, await arrow_of(tables.engine, ask, names), style, read=_nested(ask.shape))


def _when(as_of: str | None, since: str | None, between: tuple[str, str] | None, *, history: bool) -> When:
    given = {"--as-of": as_of, "--since": since, "--between": between}
    if len(named := [name for name, value in given.items() if value is not None]) > 1:
        raise Invalid(f"{' and '.join(named)} are of two kinds of questions", remedy="give one of them")
    if since is not None:
        return When("history", after=moment_of(since))
    if between is not None:
        return When("history", first=moment_of(between[0]), last=moment_of(between[1]))
    last = None if as_of is None else moment_of(as_of)
    return When("history" if history else "state", last=last)


def _nested(shape: Shape) -> dict[str, Any]:
    """Fields of no simple type are JSON; programs get what it says."""
    return {name: json.loads for name, form in shape.forms.items() if form == "json"}
