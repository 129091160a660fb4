"""``holdfast audit``: everything in the store against everything else, as a table, as JSON, or as a page to hand on.

It is a durable run like the other jobs, on Spark or in this process: killed, it goes on where it stood. It changes
nothing but its own record. The exit code is 1 if an error was found.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.clock import iso
from holdfast.base.drafts import replacing
from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.cli.audit_page import page_of
from holdfast.cli.engines import engine_for, options_of
from holdfast.cli.output import counted
from holdfast.cli.pipeline_view import Watch
from holdfast.cli.shell import Shell, noun_app
from holdfast.cli.times import parse_span

if TYPE_CHECKING:
    from holdfast.objects.client import Client
    from holdfast.pipeline.audited import Audited

app = noun_app()

Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", dir_okay=False, help="Write the report there, as one page.")
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
        int | None, typer.Option(min=1, metavar="N", help="Read the bytes of one object in so many; default 64.")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this: ingest, metrics, runs, bus, ontology; repeatable."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Judge what is older; default: pipeline.overlap_s, 10 minutes."),
    ] = None,
    inventory: Annotated[
        str | None, typer.Option(metavar="LOCATION", help="Take manifests from an S3 Inventory: its manifest.json.")
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master; inline: no Spark, in this process.")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark.")] = None,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Do not wait for another driver: fence it and go on.")
    ] = False,
    html: Html = None,
) -> None:
    """Audit the store now. Ends with 1 if an error was found."""
    _check_page(html)
    request = {
        "deep": deep or None,
        "one_in": one_in,
        "scopes": scope or None,
        "older_than_ns": None if older_than is None else parse_span(older_than),
        "inventory": inventory,
    }

    from holdfast import pipeline  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.pipeline import audited  # noqa: PLC0415  # as above
    from holdfast.pipeline.jobs.audit import check_scopes  # noqa: PLC0415  # as above

    check_scopes(scope or ())
    options = options_of(shell, None, service=False)
    async with _open(shell) as store, engine_for(shell, store, master, conf or []) as engine:
        async with Watch(shell.out).shown() as watch:
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
    audit_id: Annotated[str | None, typer.Argument(metavar="[AUDIT]", help="Default: the latest.")] = None,
    html: Html = None,
) -> None:
    """Show an audit on record. Ends with 1 if it found an error."""
    _check_page(html)
    _report(shell, await _recorded(shell, audit_id), html)


async def _recorded(shell: Shell, audit_id: str | None) -> "Audited":
    from holdfast.pipeline import audited  # noqa: PLC0415  # loads Arrow, which takes a while

    async with _open(shell) as store:
        if audit_id is not None:
            return await audited.read(store, audit_id)
        async for found in audited.latest(store):
            return found
    raise NotFound("no audit is on record here", remedy="holdfast audit run")


@app.command("list")
async def list_audits(
    shell: Shell,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The latest so many.")] = 20,
) -> None:
    """List audits on record, the latest first."""

    from holdfast.pipeline import audited  # noqa: PLC0415  # loads Arrow, which takes a while

    found: list[Audited] = []
    async with _open(shell) as store:
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


@asynccontextmanager
async def _open(shell: Shell) -> "AsyncIterator[Client]":
    from holdfast.platform.open import open_platform  # noqa: PLC0415  # a help page needs none of it

    async with open_platform(shell.existing_store(), settings=shell.settings) as hf:
        yield hf.store


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
    looked = ", ".join(f"{count:,} {what}" for what, count in record.checked.items() if what != "runs at work")
    verdict = counted(record.errors, "error") if not record.good else "nothing is wrong"
    shell.out.line(f"audit {record.audit_id}: {verdict}; {_read(record)}, through {iso(record.through_unix_ns)}")
    shell.out.line(f"looked at: {looked or 'nothing: the store is empty, or everything in it is younger'}")
    for scope, why in record.incomplete.items():
        shell.out.line(f"{scope} could not be judged: {why}")
    for key in record.lists:
        shell.out.note(f"all findings of one task: {key}")


def _read(record: "Audited") -> str:
    return "all bytes" if record.one_in <= 1 else f"bytes of 1 in {record.one_in}"
