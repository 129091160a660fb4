"""``holdfast audit``: everything in the store against everything else, as a table, as JSON, or as a page to hand on.

It is a durable run like the other jobs, on Spark or in this process: killed, it goes on where it stood. It changes
nothing but its own record. The exit code is 1 if an error was found.
"""

from collections import defaultdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.clock import iso, parse_span
from holdfast.base.codec import Document
from holdfast.base.drafts import replacing
from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.cli.output import counted
from holdfast.cli.pipeline.engines import Conf, Latest, Master, Takeover, engine_for, open_pipeline, options_of
from holdfast.cli.pipeline.view import Watch
from holdfast.cli.shell import Shell, noun_app

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.audited import Audited

app = noun_app()

Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", dir_okay=False, help="Also write the report to this HTML file.")
]
SHOWN = 20
"""Findings of a rule that a table shows."""


@app.callback()
def audit() -> None:
    """Check everything in a store against everything else, and keep the result."""


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
        str | None,
        typer.Option(metavar="SPAN", help="Judge only objects older than this (default: 10 minutes)."),
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
    _check_page(html)
    request = {
        "deep": deep or None,
        "one_in": one_in,
        "scopes": scope or None,
        "older_than_ns": None if older_than is None else parse_span(older_than),
        "inventory": inventory,
    }

    from holdfast import pipeline  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.pipeline.jobs import audited  # noqa: PLC0415  # as above
    from holdfast.pipeline.jobs.audit import check_scopes  # noqa: PLC0415  # as above

    check_scopes(scope or ())
    options = options_of(shell, None, service=False)
    watch = Watch(shell.out)
    async with open_pipeline(shell) as store, engine_for(shell, store, master, conf or [], watch) as engine:
        async with watch.shown():
            ended = await pipeline.run(
                store, ["audit"], engine=engine, options=options, request=request, takeover=takeover, say=watch.say
            )
        for each in ended:
            if each.status != "success":
                raise HoldfastError(f"audit, run {each.run_id}: {each.status}: {each.error}")
        found = await audited.read(store, ended[-1].summary["audit_id"])
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
    _check_page(html)
    _report(shell, await _recorded(shell, audit_id), html)


async def _recorded(shell: Shell, audit_id: str | None) -> "Audited":
    from holdfast.pipeline.jobs import audited  # noqa: PLC0415  # loads Arrow, which takes a while

    async with open_pipeline(shell) as store:
        if audit_id is not None:
            return await audited.read(store, audit_id)
        async for found in audited.latest(store):
            return found
    raise NotFound("no audit is on record here", remedy="holdfast audit run")


@app.command("list")
async def list_audits(
    shell: Shell,
    limit: Latest = 20,
) -> None:
    """List recorded audits, the latest first."""

    from holdfast.pipeline.jobs import audited  # noqa: PLC0415  # loads Arrow, which takes a while

    found: list[Audited] = []
    async with open_pipeline(shell) as store:
        async for each in audited.latest(store):
            found.append(each)
            if len(found) >= limit:
                break
    columns = ("audit", "scopes", "source", "read", "through", "errors", "findings")
    rows = [
        (
            each.audit_id,
            " ".join(each.scopes),
            each.source,
            _read(each),
            iso(each.through_unix_ns)[:19],
            each.errors,
            sum(each.found.values()),
        )
        for each in found
    ]
    shell.out.table(columns, rows, empty="no audit is on record here")


def _check_page(html: Path | None) -> None:
    """That the page can be written, before anything is done for it. What is there stays as it is."""
    if html is None:
        return
    new = not html.exists()
    try:
        with html.open("ab"):
            pass
        if new:
            html.unlink()
    except OSError as error:
        raise _unwritten(html, error) from error


def _unwritten(html: Path, error: OSError) -> Invalid:
    return Invalid(f"{html}: {error.strerror}", remedy="give a file that can be written")


def _report(shell: Shell, record: "Audited", html: Path | None) -> None:
    if html is not None:
        try:
            with replacing(html) as draft:
                draft.write_text(page_of(record), encoding="utf-8")
        except OSError as error:
            raise _unwritten(html, error) from error
    if shell.out.as_json:
        shell.out.document(record.document())
    else:
        _show(shell, record)
    if not record.good:
        raise typer.Exit(1)


def _show(shell: Shell, record: "Audited") -> None:
    shown: dict[str, int] = {}
    rows: list[tuple[object, ...]] = []
    for each in record.findings:
        rule = str(each["rule"])
        shown[rule] = shown.get(rule, 0) + 1
        if shown[rule] <= SHOWN:
            rows.append((each["severity"], rule, each["key"], each["message"]))
    if rows:
        shell.out.table(("severity", "rule", "key", "message"), rows)
        remedies = {str(each["rule"]): str(each["remedy"]) for each in record.findings}
        for rule, remedy in remedies.items():
            more = record.found[rule] - min(shown[rule], SHOWN)
            shell.out.line(f"{rule}: {remedy}" + (f" ({more:,} more)" if more else ""))
    checked = {what: count for what, count in record.checked.items() if what != "runs at work"}
    looked = ", ".join(f"{what} {count:,}" for what, count in checked.items())
    verdict = counted(record.errors, "error") if not record.good else "nothing is wrong"
    shell.out.line(f"audit {record.audit_id}: {verdict}; {_read(record)}, through {iso(record.through_unix_ns)}")
    shell.out.line(f"looked at: {looked or 'nothing: the store is empty, or everything in it is younger'}")
    for scope, why in record.incomplete.items():
        shell.out.line(f"{scope} could not be judged: {why}")
    for key in record.lists:
        shell.out.note(f"all findings of one task: {key}")


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
    """The whole report."""
    verdict = "Nothing is wrong" if record.good else f"{record.errors:,} errors"
    tone = "good" if record.good else "error"
    read = "all bytes" if record.one_in <= 1 else f"the bytes of 1 object in {record.one_in}"
    facts = {
        "Scopes": ", ".join(record.scopes),
        "Holds through": f"{iso(record.through_unix_ns)} by the store's clock",
        "Read": f"{read}; manifests from {'a listing' if record.source == 'scan' else 'an S3 Inventory report'}",
        "Began": iso(record.began_unix_ns),
        "Ended": iso(record.ended_unix_ns),
    }
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit {escape(record.audit_id)}</title><style>{STYLE}</style></head><body>",
        f"<h1>Audit {escape(record.audit_id)}</h1>",
        f'<p class="verdict {tone}">{escape(verdict)}</p>',
        _rows(["", ""], list(facts.items()), head=False),
        *(f"<p>{escape(scope)} could not be judged: {escape(why)}</p>" for scope, why in record.incomplete.items()),
        *_findings(record),
        "<h2>Looked at</h2>",
        _rows(["what", "how many"], [(what, f"{count:,}") for what, count in record.checked.items()])
        if record.checked
        else "<p>Nothing: the store is empty, or everything in it is younger.</p>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _findings(record: "Audited") -> list[str]:
    by_rule: dict[str, list[Document]] = defaultdict(list)
    for each in record.findings:
        by_rule[str(each["rule"])].append(each)
    parts: list[str] = []
    for rule, found in by_rule.items():
        severity, total = str(found[0]["severity"]), record.found[rule]
        parts.append(f'<h2 class="{escape(severity)}">{escape(severity)}: {escape(rule)} ({total:,})</h2>')
        parts.append(f"<p>What to do: {escape(str(found[0]['remedy']))}</p>")
        parts.append(_rows(["key", "what is wrong"], [(str(each["key"]), str(each["message"])) for each in found]))
        if total > len(found):
            parts.append(f"<p>And {total - len(found):,} more; the record names the lists with all of them.</p>")
    return parts


def _rows(columns: list[str], rows: list[tuple[str, str]], *, head: bool = True) -> str:
    titles = f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in columns)}</tr>" if head else ""
    body = "".join(f'<tr><td class="key">{escape(first)}</td><td>{escape(second)}</td></tr>' for first, second in rows)
    return f"<table>{titles}{body}</table>"
