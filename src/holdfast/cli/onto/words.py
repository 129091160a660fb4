"""The options of ``holdfast onto query``: each says in words what a method of a query says in Python."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.rows import Format

TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="An entity or relation type.")]
Where = Annotated[
    list[str] | None,
    typer.Option(metavar="CONDITION", help='Such as: tier == "Gold" and age > 30; repeatable, all must hold.'),
]
Via = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOP",
        help="Follow a relation, as in 'Knows depth 1..3 where since > 2000 to age > 30', or from some alone: "
        "'first 3 by age desc along Knows'; repeatable.",
    ),
]
ShortestPath = Annotated[
    str | None,
    typer.Option("--path", metavar="HOP", help="The shortest way along a relation, as in 'Knows to name == \"Ada\"'."),
]
Linked = Annotated[
    bool, typer.Option("--linked", help="Relations with the fields at both ends, as columns such as left.name.")
]
AsOf = Annotated[str | None, typer.Option(metavar="MOMENT", help="A commit's number, a time, or a tag.")]
Strict = Annotated[bool, typer.Option("--strict", help="A moment after the head is an error, and not the head.")]
History = Annotated[bool, typer.Option("--history", help="Every row that was ever written.")]
Since = Annotated[str | None, typer.Option(metavar="MOMENT", help="Every row written after it.")]
Between = Annotated[
    tuple[str, str] | None, typer.Option(metavar="FIRST LAST", help="Every row written from one to the other.")
]
Diff = Annotated[
    tuple[str, str] | None, typer.Option(metavar="OLDER NEWER", help="What is not the same at two moments.")
]
OrderBy = Annotated[
    list[str] | None,
    typer.Option(metavar="FIELD [asc|desc] [nulls first]", help="Such as 'age desc'; nulls come last; repeatable."),
]
Selected = Annotated[
    str | None, typer.Option("--columns", metavar="FIELD,...", help="Fields to show, of the ends too: id,left.name.")
]
Meta = Annotated[bool, typer.Option("--meta", help="Also show the commit and key of each row, as the column _meta.")]
Limit = Annotated[int | None, typer.Option(min=0, metavar="N", help="At most so many rows.")]
Offset = Annotated[int, typer.Option(min=0, metavar="N", help="Leave out so many rows first.", show_default=False)]
PageSize = Annotated[
    int | None, typer.Option("--page", min=1, metavar="N", help="So many rows, and a cursor for those after them.")
]
After = Annotated[
    str | None, typer.Option(metavar="CURSOR", help="With --page: go on where that page ended, as of its commit.")
]
First = Annotated[bool, typer.Option("--first", help="The first row, by itself; none is no error.")]
One = Annotated[bool, typer.Option("--one", help="The only row, by itself; none, or several, is an error.")]
Count = Annotated[bool, typer.Option("--count", help="Only say how many rows there are.")]
Figures = Annotated[
    list[str] | None,
    typer.Option("--agg", metavar="FIGURE", help="Such as 'n=count()' or 'avg(age)'; repeatable."),
]
GroupBy = Annotated[list[str] | None, typer.Option(metavar="FIELD", help="Figures for each value of it; repeatable.")]
Having = Annotated[
    list[str] | None, typer.Option(metavar="CONDITION", help="Only groups like that, as in 'n > 5'; repeatable.")
]
Explain = Annotated[bool, typer.Option("--explain", help="Show files, pruning and requests.")]
Profile = Annotated[bool, typer.Option("--profile", help="As --explain; run it, and show where time goes.")]
Stream = Annotated[
    bool, typer.Option("--stream", help="Row by row, however many; in no order unless one is asked for.")
]
Printed = Annotated[Format | None, typer.Option("--format", help="How to print rows.")]
Saved = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Into a .parquet, .arrow, .csv or .jsonl file instead."),
]
