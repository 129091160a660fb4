"""``holdfast logs``: search in the logs of all agents."""

from typing import Annotated

import typer

from holdfast.cli.options import Format, OutputFormat
from holdfast.cli.output import Columns, clock_time
from holdfast.cli.rows import format_for, show_rows
from holdfast.cli.shell import Shell, noun_app
from holdfast.cli.telemetry.metrics import Agent, Since, Until, Where, labels_text, note_gaps

app = noun_app(is_group=True)


@app.command()
async def search(
    shell: Shell,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="Words that must all be in the message.")
    ] = None,
    contains: Annotated[
        str, typer.Option("--contains", metavar="TEXT", help="Text that must be in the message as it stands.")
    ] = "",
    regex: Annotated[
        str,
        typer.Option("--regex", metavar="PATTERN", help="A regular expression (RE2) that must match in the message."),
    ] = "",
    since: Since = "1h",
    until: Until = None,
    severity: Annotated[
        str, typer.Option(metavar="LEVEL", help="The lowest severity: info, warn, error, or a number.")
    ] = "0",
    where: Where = None,
    agent: Agent = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many to show at most, the newest first.")] = 100,
    style: OutputFormat = None,
) -> None:
    """Find logs that have all of the words, the newest first."""
    async with shell.open() as hf:
        found = await hf.logs().search(
            " ".join(words or []),
            contains=contains,
            regex=regex,
            since=since,
            until=until,
            severity=severity,
            where=where,
            agent=agent,
            limit=limit,
        )
    if shell.out.as_json and style is None:
        shell.out.document(found.document("logs"))
    elif format_for(shell.out, style) is Format.TABLE:
        columns: Columns = {
            "time": lambda row: clock_time(row["time_ns"]),
            "agent": "agent",
            "severity": "severity",
            "message": "message",
            "labels": lambda row: labels_text(row["labels"]) if row["labels"] else "",
        }
        shell.out.table(found.rows, columns)
    else:
        show_rows(shell.out, found.rows, style)
    if found.truncated:
        shell.out.note(f"there are more than {limit}; --limit shows more")
    note_gaps(shell.out, found.read)
