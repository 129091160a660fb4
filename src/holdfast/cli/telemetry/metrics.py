"""``holdfast metrics``: which metrics there are, and their values over time, from rollups and from batches."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.base.codec import json_number
from holdfast.base.errors import Invalid
from holdfast.cli.options import Format, OutputFormat
from holdfast.cli.output import Output, clock_time, counted
from holdfast.cli.rows import format_for, show_rows
from holdfast.cli.shell import Shell, noun_app
from holdfast.telemetry.query.answer import Answer, Read
from holdfast.telemetry.query.question import Aggregate

app = noun_app()

Name = Annotated[str, typer.Argument(metavar="METRIC", help="The metric's name.")]
Since = Annotated[str, typer.Option(metavar="TIME", help="The start: 2h for two hours ago, or a time.")]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="The end (default: now).")]
Agent = Annotated[str | None, typer.Option(metavar="NAME", help="Only this agent.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="A condition on a label, repeatable: cpu=0, mode!=idle, 'path=~/api/.*'",
    ),
]


@app.command("list")
async def list_metrics(
    shell: Shell,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A pattern as in the shell, such as node_*.")] = "*",
    since: Since = "1h",
    until: Until = None,
    agent: Agent = None,
    style: OutputFormat = None,
) -> None:
    """List metrics that have samples in the range, with how many series and agents each has."""
    async with shell.open() as hf:
        found = await hf.metrics().list(pattern, since=since, until=until, agent=agent)
    rows = found.rows
    if format_for(shell.out, style) is Format.TABLE:
        rows = [_with_readable_times(row) for row in rows]
    show_rows(shell.out, rows, style)
    note_gaps(shell.out, found.read)


@app.command()
async def labels(
    shell: Shell,
    metric: Name,
    since: Since = "1h",
    until: Until = None,
    agent: Agent = None,
    style: OutputFormat = None,
) -> None:
    """List the labels of a metric and their values, with how many series have each."""
    async with shell.open() as hf:
        found = await hf.metrics().labels(metric, since=since, until=until, agent=agent)
    show_rows(shell.out, found.rows, style)
    note_gaps(shell.out, found.read)


@app.command()
async def query(
    shell: Shell,
    metric: Name,
    since: Since = "1h",
    until: Until = None,
    step: Annotated[
        str | None, typer.Option(metavar="SPAN", help="The length of a step: 10s, 1m, 1h (default: about 60 steps).")
    ] = None,
    aggregate: Annotated[
        Aggregate, typer.Option("--aggregate", "-a", help="How the samples of a step become one value.")
    ] = Aggregate.AVG,
    quantile: Annotated[
        float | None,
        typer.Option("--quantile", "-q", metavar="PART", help="A quantile such as 0.95, in place of --aggregate."),
    ] = None,
    where: Where = None,
    agent: Agent = None,
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="LABEL", help="A label to group series by; repeatable.")
    ] = None,
    total: Annotated[bool, typer.Option("--total", help="Group all series together.")] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Draw each series as a line of blocks.")] = False,
    style: OutputFormat = None,
) -> None:
    """Show the values of a metric, step by step."""
    if total and by:
        raise Invalid("--total puts all series together, --by only some", remedy="give one of them")
    async with shell.open() as hf:
        found = await hf.metrics().query(
            metric,
            since=since,
            until=until,
            step=step,
            aggregate=Aggregate.QUANTILE if quantile is not None and aggregate is Aggregate.AVG else aggregate,
            where=where,
            agent=agent,
            by=[] if total else by or None,
            q=quantile,
        )
    if plot and not shell.out.as_json:
        _plot(shell.out, found)
    elif style is None and shell.out.as_json:
        shell.out.document(found.document())
    else:
        exact = format_for(shell.out, style) is not Format.TABLE
        rows = [
            {
                "time": clock_time(row["time_ns"]),
                "series": labels_text(row["labels"]),
                "value": json_number(row["value"]) if exact else _figure(row["value"]),
            }
            for row in found.rows()
        ]
        show_rows(shell.out, rows, style)
    note_gaps(shell.out, found.read)


def _plot(out: Output, found: Answer) -> None:
    asked = found.question
    rows = [
        {
            "series": labels_text(each.labels),
            "plot": sparkline(each.times_ns, each.values, asked.since_ns, asked.until_ns, asked.step_ns),
            "min": _figure(min(each.values, key=lambda value: (math.isnan(value), value))),
            "max": _figure(max(each.values, key=lambda value: (not math.isnan(value), value))),
            "last": _figure(each.values[-1]),
        }
        for each in found.series
    ]
    out.table(rows)
    out.note(f"{clock_time(asked.since_ns)} to {clock_time(asked.until_ns)}")


def note_gaps(out: Output, read: Read) -> None:
    """Note what an answer lacks, and warnings about its numbers."""
    if read.unreadable:
        lacks = f"{counted(len(read.unreadable), 'batch', 'batches')} could not be read"
        out.note(f"{lacks}, and the answer does not count them: {', '.join(read.unreadable[:3])}")
    for warning in read.warnings:
        out.note(warning)


def labels_text(labels: dict[str, str]) -> str:
    """``agent=web-1 cpu=0``; of all series together, ``all``."""
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items())) or "all"


def _figure(value: float) -> str:
    """Six digits are enough for people."""
    return f"{value:.6g}"


def _with_readable_times(row: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in row.items() if not name.endswith("_time_ns")}
    return rest | {name: clock_time(row[f"{name}_time_ns"]) for name in ("first", "last")}


BLOCKS = "▁▂▃▄▅▆▇█"
WIDEST = 80
"""Characters; of longer series each stands for several steps."""


def sparkline(times: Sequence[int], values: Sequence[float], since: int, until: int, step: int) -> str:
    """One character per step, or per several; blank where no value is. Steps that share one show their mean."""
    steps = max(1, (until - since) // step)
    each = -(-steps // WIDEST)
    cells: dict[int, list[float]] = {}
    for at, value in zip(times, values, strict=True):
        cells.setdefault((at - since) // step // each, []).append(value)
    means = {place: sum(found) / len(found) for place, found in cells.items()}
    finite = [value for value in means.values() if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_block(means.get(place), low, high) for place in range(-(-steps // each)))


def _block(value: float | None, low: float, high: float) -> str:
    if value is None or math.isnan(value):
        return " "
    if math.isinf(value):
        return BLOCKS[-1] if value > 0 else BLOCKS[0]
    if high == low:
        return BLOCKS[0]
    # Halves first: the distance between two floats may be more than a float can hold.
    part = (value / 2 - low / 2) / (high / 2 - low / 2)
    return BLOCKS[min(len(BLOCKS) - 1, int(part * len(BLOCKS)))]
