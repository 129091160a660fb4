"""``holdfast audit``: check everything in the store against everything else. The report is a table, JSON, or a page.

An audit is a durable run like the other jobs, on Spark or in this process: if it is killed, the next one continues it.
It writes nothing but its own record. The exit code is 1 if an error was found.
"""

from collections import defaultdict
from collections.abc import AsyncIterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.drafts import replacing
from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.cli import options
from holdfast.cli.output import counted
from holdfast.cli.pipeline.driver import Conf, Master, Takeover, driver
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.client import Client

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.audited import Audited

app = noun_app()

Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", dir_okay=False, help="Also write the report to this HTML file.")
]
SHOWN = 20
"""Findings of a rule that a table shows."""
NO_AUDIT = "no audit is recorded here"
NOTHING_CHECKED = "nothing: the store is empty, or everything in it is younger"


@app.command()
async def run(
    shell: Shell,
    deep: Annotated[bool, typer.Option("--deep", help="Read all bytes, and derive every unit again.")] = False,
    one_in: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Read the bytes of one object in N (default 64).")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Audit only ingest, metrics, runs, bus or ontology; repeatable."),
    ] = None,
    older_than: Annotated[
        int | None, options.span("--older-than", "Judge only objects older than this (default: 10 minutes).")
    ] = None,
    inventory: Annotated[
        str | None,
        typer.Option(metavar="LOCATION", help="Read manifests from an S3 Inventory report (its manifest.json)."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    takeover: Takeover = False,
    html: Html = None,
) -> None:
    """Audit the store now. Exits with 1 if an error was found."""
    from holdfast.pipeline.jobs import audited  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.pipeline.jobs.audit import check_scopes  # noqa: PLC0415  # as above

    check_scopes(scope or ())
    request = {
        "deep": deep or None,
        "one_in": one_in,
        "scopes": scope or None,
        "older_than_ns": older_than,
        "inventory": inventory,
    }
    async with driver(shell, master, conf) as it:
        ended = await it.run(["audit"], request, takeover=takeover)
        for each in ended:
            if each.status != "success":
                raise HoldfastError(f"audit, run {each.run_id}: {each.status}: {each.error}")
        found = await audited.read(it.store, ended[-1].summary["audit_id"])
    _report(shell, found, html)


@app.command()
async def show(
    shell: Shell,
    audit_id: Annotated[
        str | None, typer.Argument(metavar="AUDIT", help="The audit's id (default: the latest).")
    ] = None,
    html: Html = None,
) -> None:
    """Show a recorded audit. Exits with 1 if it found an error."""
    from holdfast.pipeline.jobs import audited  # noqa: PLC0415  # loads Arrow, which takes a while

    async with shell.open() as hf:
        if audit_id is not None:
            found = await audited.read(hf.store, audit_id)
        elif recorded := [each async for each in _latest(hf.store, 1)]:
            found = recorded[0]
        else:
            raise NotFound(NO_AUDIT, remedy="holdfast audit run")
    _report(shell, found, html)


@app.command("list")
async def list_audits(shell: Shell, limit: options.Limit = 20) -> None:
    """List recorded audits, the latest first."""
    async with shell.open() as hf:
        results = [
            {
                "audit": each.audit_id,
                "scopes": " ".join(each.scopes),
                "source": each.source,
                "read": _read(each),
                "through": iso(each.through_unix_ns)[:19],
                "errors": each.errors,
                "findings": sum(each.found.values()),
            }
            async for each in _latest(hf.store, limit)
        ]
    shell.out.table(results, empty=NO_AUDIT)


async def _latest(store: Client, limit: int) -> "AsyncIterator[Audited]":
    from holdfast.pipeline.jobs import audited  # noqa: PLC0415  # loads Arrow, which takes a while

    left = limit
    async for each in audited.latest(store):
        yield each
        left -= 1
        if not left:
            return


def _report(shell: Shell, record: "Audited", html: Path | None) -> None:
    if shell.out.as_json:
        shell.out.document(record.document())
    else:
        _show(shell, record)
    if html is not None:
        try:
            with replacing(html) as draft:
                draft.write_text(page_of(record), encoding="utf-8")
        except OSError as error:
            remedy = f"give another file: holdfast audit show {record.audit_id} --html FILE"
            raise Invalid(f"{html}: {error.strerror}", remedy=remedy) from error
    if not record.good:
        raise typer.Exit(1)


def _show(shell: Shell, record: "Audited") -> None:
    by_rule = _by_rule(record)
    if by_rule:
        shown = [each for found in by_rule.values() for each in found[:SHOWN]]
        shell.out.table(shown, ("severity", "rule", "key", "message"))
        for rule, found in by_rule.items():
            more = record.found[rule] - min(len(found), SHOWN)
            shell.out.line(f"{rule}: {found[0]['remedy']}" + (f" ({more:,} more)" if more else ""))
    checked = ", ".join(f"{what} {count:,}" for what, count in record.checked.items() if what != "runs at work")
    verdict = counted(record.errors, "error") if not record.good else "nothing is wrong"
    shell.out.line(f"audit {record.audit_id}: {verdict}; {_read(record)}, through {iso(record.through_unix_ns)}")
    shell.out.line(f"looked at: {checked or NOTHING_CHECKED}")
    for scope, why in record.incomplete.items():
        shell.out.line(f"{scope} could not be judged: {why}")
    for key in record.lists:
        shell.out.note(f"all findings of one task: {key}")


def _by_rule(record: "Audited") -> dict[str, list[Document]]:
    by_rule: dict[str, list[Document]] = defaultdict(list)
    for each in record.findings:
        by_rule[str(each["rule"])].append(each)
    return by_rule


def _read(record: "Audited") -> str:
    return "all bytes" if record.one_in <= 1 else f"bytes of 1 in {record.one_in}"


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733 }
h1 { font-size: 1.5rem; margin-bottom: .2rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .3rem }
p { margin: .3rem 0 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #dde3e9 }
td.key { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere }
.verdict { font-weight: 600 }
.good { color: #17663a } .error { color: #a4161a } .warning { color: #8a5a00 } .information { color: #4a5a6a }
@media (prefers-color-scheme: dark) {
  body { background: #12181f; color: #dce3ea } th, td { border-color: #2c3742 }
  .good { color: #6fd394 } .error { color: #ff8a8a } .warning { color: #f0c060 } .information { color: #9fb0c0 }
}
"""


def page_of(record: "Audited") -> str:
    """The whole report as a page of HTML."""
    facts = {
        "Scopes": ", ".join(record.scopes),
        "Holds through": f"{iso(record.through_unix_ns)} by the store's clock",
        "Read": f"{_read(record)}; manifests from "
        + ("a listing" if record.source == "scan" else "an S3 Inventory report"),
        "Began": iso(record.began_unix_ns),
        "Ended": iso(record.ended_unix_ns),
    }
    tone, verdict = ("good", "Nothing is wrong") if record.good else ("error", counted(record.errors, "error"))
    checked = [(what, f"{count:,}") for what, count in record.checked.items()]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit {escape(record.audit_id)}</title><style>{STYLE}</style></head><body>",
        f"<h1>Audit {escape(record.audit_id)}</h1>",
        f'<p class="verdict {tone}">{verdict}</p>',
        _html_table(list(facts.items())),
        *(f"<p>{escape(scope)} could not be judged: {escape(why)}</p>" for scope, why in record.incomplete.items()),
    ]
    for rule, found in _by_rule(record).items():
        severity, more = escape(str(found[0]["severity"])), record.found[rule] - len(found)
        parts += [
            f'<h2 class="{severity}">{severity}: {escape(rule)} ({record.found[rule]:,})</h2>',
            f"<p>What to do: {escape(str(found[0]['remedy']))}</p>",
            _html_table([(str(each["key"]), str(each["message"])) for each in found]),
            f"<p>And {more:,} more; the record names the lists with all of them.</p>" if more else "",
        ]
    looked = _html_table(checked) if checked else f"<p>{NOTHING_CHECKED}</p>"
    return "\n".join([*parts, "<h2>Looked at</h2>", looked, "</body></html>", ""])


def _html_table(rows: list[tuple[str, str]]) -> str:
    body = "".join(f'<tr><td class="key">{escape(first)}</td><td>{escape(second)}</td></tr>' for first, second in rows)
    return f"<table>{body}</table>"
