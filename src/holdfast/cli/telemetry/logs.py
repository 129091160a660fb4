"""``holdfast logs``: search in the logs of all agents."""

from typing import Annotated

import typer

from holdfast.cli.output import clock_time
from holdfast.cli.rows import Format, show_groups
from holdfast.cli.shell import Shell, noun_app
from holdfast.cli.telemetry.metrics import Agent, FormatOption, Since, Until, Where, labels_text, note_gaps
from holdfast.platform.open import open_platform

app = noun_app()


@app.callback()
def logs() -> None:
    """Search the logs of all agents."""


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
    style: FormatOption = None,
) -> None:
    """Find logs that have all of the words, the newest first."""
    async with open_platform(shell.existing_store(), settings=shell.settings) as hf:
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
    elif style in (None, Format.TABLE):
        rows = [
            (
                clock_time(row["time_ns"]),
                row["agent"],
                row["severity"],
                row["message"],
                labels_text(row["labels"]) if row["labels"] else "",
            )
            for row in found.rows
        ]
        shell.out.table(("time", "agent", "severity", "message", "labels"), rows)
    else:
        show_groups(shell.out, found.rows, style)
    if found.truncated:
        shell.out.note(f"there are more than {limit}; --limit shows more")
    note_gaps(shell.out, found.read)
