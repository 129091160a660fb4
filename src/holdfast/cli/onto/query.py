"""``holdfast onto query``: a type's rows by conditions in words, at any moment."""

import json
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.cli.onto import words
from holdfast.cli.onto.sql import moment_of
from holdfast.cli.rows import Answers
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.open import open_store
from holdfast.ontology.chain.times import LATEST, When
from holdfast.ontology.format import layout
from holdfast.ontology.query.explain import explain
from holdfast.ontology.query.results import NoResult, SeveralResults
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.query.statement import Ask
from holdfast.ontology.query.tabular import Columns, arrow_of, counted, pieces_of
from holdfast.ontology.query.text_query import (
    Wording,
    difference_in_words,
    figures_in_words,
    page_in_words,
    understood,
    way_in_words,
)

app = noun_app()
"""The noun with this verb alone: it starts in half the time of all of them."""
_NAMES = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^,`]+?))\s*(?:,|$)")


@app.callback()
def onto() -> None:
    """See typed entities and relations, their commits and their lock."""


@app.command()
async def query(
    shell: Shell,
    type_name: words.TypeName,
    where: words.Where = None,
    via: words.Via = None,
    path: words.ShortestPath = None,
    linked: words.Linked = False,
    as_of: words.AsOf = None,
    strict: words.Strict = False,
    history: words.History = False,
    since: words.Since = None,
    between: words.Between = None,
    diff: words.Diff = None,
    order_by: words.OrderBy = None,
    columns: words.Selected = None,
    meta: words.Meta = False,
    limit: words.Limit = None,
    offset: words.Offset = 0,
    page: words.PageSize = None,
    after: words.After = None,
    first: words.First = False,
    one: words.One = False,
    count: words.Count = False,
    figures: words.Figures = None,
    group_by: words.GroupBy = None,
    having: words.Having = None,
    explained: words.Explain = False,
    profile: words.Profile = False,
    stream: words.Stream = False,
    style: words.Printed = None,
    output: words.Saved = None,
) -> None:
    """Query a type: conditions, hops, order, columns, pages, figures, at any moment."""
    wording = Wording(
        type_name,
        tuple(text for text in where or () if text.strip()),
        tuple(order_by or ()),
        _names(columns or ""),
        limit,
        offset,
        _when(as_of, since, between, history=history, strict=strict),
        tuple(via or ()),
        tuple(group_by or ()),
        tuple(figures or ()),
        tuple(having or ()),
        linked,
        meta,
    )
    single = "first" if first else "one" if one else None
    if first and one:
        raise Invalid("--first and --one are of two kinds of questions", remedy="give one of them")
    asked = Asked(wording, count, path, diff, explained or profile, profile, page, after, single, stream)
    asked.check()
    answers = Answers(shell.out, style, output)
    answers.check(page=page is not None, stream=stream)
    await _work(shell, asked, answers)


@dataclass(frozen=True)
class Asked:
    """What is wanted of a question in words."""

    wording: Wording
    count: bool
    path: str | None
    diff: tuple[str, str] | None
    explained: bool
    profile: bool
    page: int | None
    after: str | None
    single: str | None
    """first or one."""
    stream: bool

    @property
    def figures(self) -> bool:
        return bool(self.wording.figures or self.wording.group_by or self.wording.having)

    def check(self) -> None:
        wording = self.wording
        kinds = {"--agg, --group-by or --having": self.figures, "--diff": self.diff is not None, "--count": self.count}
        kinds |= {"--path": self.path is not None, "--explain": self.explained, "--page": self.page is not None}
        kinds |= {f"--{self.single}": self.single is not None, "--stream": self.stream}
        given = [name for name, is_given in kinds.items() if is_given]
        if len(given) > 1:
            raise Invalid(f"{' and '.join(given)} are of two kinds of questions", remedy="give one of them")
        own = self.figures or self.diff is not None
        if own and (wording.order_by or wording.columns or wording.linked or (wording.meta and self.figures)):
            raise Invalid(f"{given[0]} has an order and columns of its own", remedy="leave these options out")
        if self.diff is not None and wording.when != LATEST:
            raise Invalid("--diff names its moments itself", remedy="give --where and --via besides it")
        if self.after is not None and self.page is None:
            raise Invalid("--after goes on with pages", remedy="say how many rows a page has, as in --page 50")
        if self.page is not None and (wording.limit is not None or wording.offset):
            raise Invalid("a query with a limit has no pages", remedy="leave out --limit and --offset")


async def _work(shell: Shell, asked: Asked, answers: Answers) -> None:
    settings, wording = shell.settings, asked.wording
    async with (
        open_store(shell.existing_store(), settings=settings, immutable=layout.immutable) as store,
        SqlTables(store, memory_limit=settings.ontology.s3_duckdb_memory_limit) as tables,
    ):
        if asked.figures:
            answers.groups(await figures_in_words(tables, wording))
        elif asked.diff is not None:
            moments = [moment_of(each) for each in asked.diff]
            found = await difference_in_words(tables, wording, moments[0], moments[1])
            answers.rows(found, {"before": json.loads, "after": json.loads})
        elif asked.path is not None:
            wanted, found = await way_in_words(tables, wording, asked.path)
            answers.rows(found, _nested(wanted))
        elif asked.page is not None:
            wanted, piece = await page_in_words(tables, wording, asked.page, asked.after)
            answers.page(piece.found, _nested(wanted), piece.cursor, piece.window.upper)
        else:
            await _rows(shell, asked, answers, tables)


async def _rows(shell: Shell, asked: Asked, answers: Answers, tables: SqlTables) -> None:
    wanted = await understood(tables, asked.wording)
    if asked.explained:
        await _explain(shell, tables, wanted.asked, profile=asked.profile)
    elif asked.count:
        answers.rows(pa.table({"count": [await counted(tables.engine, wanted.ask)]}))
    elif asked.stream:
        await answers.stream(pieces_of(tables.engine, wanted), _nested(wanted))
    elif asked.single is not None:
        wanted = wanted.at_most(1 if asked.single == "first" else 2)
        found = await arrow_of(tables.engine, wanted)
        if asked.single == "one":
            _check_one(found.num_rows, asked.wording.type_name)
        answers.single(found, _nested(wanted))
    else:
        answers.rows(await arrow_of(tables.engine, wanted), _nested(wanted))


async def _explain(shell: Shell, tables: SqlTables, ask: Ask, *, profile: bool) -> None:
    told = await explain(tables.engine, ask, profile=profile)
    if shell.out.as_json:
        shell.out.document(told.document())
        return
    for line in str(told).splitlines():
        shell.out.line(line)


def _check_one(rows: int, type_name: str) -> None:
    if not rows:
        raise NoResult(f"no {type_name} is like that", remedy="say --first where there may be none")
    if rows > 1:
        raise SeveralResults(f"more than one {type_name} is like that", remedy="say --first, or which one is meant")


def _when(
    as_of: str | None, since: str | None, between: tuple[str, str] | None, *, history: bool, strict: bool
) -> When:
    given = {"--as-of": as_of, "--since": since, "--between": between}
    named = [name for name, value in given.items() if value is not None]
    if between is not None and len(named) > 1:
        raise Invalid(f"{' and '.join(named)} are of two kinds of questions", remedy="give one of them")
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


def _nested(wanted: Columns) -> dict[str, Any]:
    """Fields of no simple type are JSON; programs get what it says."""
    return {name: json.loads for name, form in wanted.forms.items() if form == "json"}
