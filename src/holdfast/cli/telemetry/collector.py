"""``holdfast collector``: accept telemetry over HTTP, until a signal ends it.

Standard output has one line, or with ``--json`` one document, as soon as the collector listens. Once the store is
open, standard error has logs as JSON lines; on a terminal it has only warnings, and a line of figures that is kept up
to date. An error that keeps the collector from starting is reported as by every command.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from holdfast.base.config import IngestSection, problem_in
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.base.telemetry import logger
from holdfast.cli.output import TERMINATED, Output, counted
from holdfast.cli.shell import Shell, noun_app

if TYPE_CHECKING:
    from holdfast.server.run import Serving

REFRESH_S = 1.0
GC_THRESHOLD = (20_000, 20, 100)
"""Of Python's garbage collector: objects created beyond those freed, then collections of each generation."""

_log = logger("server")
app = noun_app()


@app.command()
async def collector(
    shell: Shell,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address for batches (default 127.0.0.1:8080).")
    ] = None,
    private: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The address for reads, metrics and health (default 127.0.0.1:8081)."),
    ] = None,
    tokens: Annotated[Path | None, typer.Option(metavar="PATH", help="The token file.")] = None,
    acceptance: Annotated[
        str | None, typer.Option(metavar="MODE", help="s3_manifest (default), or local_spool for a single collector.")
    ] = None,
    spool: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With local_spool: the directory where batches wait.")
    ] = None,
    query_collector: Annotated[
        bool, typer.Option("--query-collector", help="Follow all other collectors, so that live reads are complete.")
    ] = False,
    collector_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="This collector's name in manifests.")
    ] = None,
    authority_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Refuse a store that has another authority.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A PEM file with the certificate chain for TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PATH", help="The certificate's key.")] = None,
    unsafe_any_place: Annotated[
        bool, typer.Option("--unsafe-any-place", help="Serve a store whose authority names another address.")
    ] = False,
) -> None:
    """Accept telemetry from agents, each batch exactly once.

    Any number of collectors share one store. SIGTERM and Ctrl-C let requests under way
    finish; the exit code is then 0. A second one does not wait for them, and exits with 143.
    """
    section = _section(
        shell.settings.ingest,
        listen=listen,
        private=private,
        tokens=tokens,
        acceptance=acceptance,
        spool=spool,
        collector_id=collector_id,
        authority_id=authority_id,
        tls_certificate_file=tls_certificate,
        tls_key_file=tls_key,
    )
    try:
        from holdfast.server.logs import logging_to  # noqa: PLC0415  # the server's packages are an extra
        from holdfast.server.run import run_collector  # noqa: PLC0415  # as above
    except ImportError as error:
        raise HoldfastError(
            f"a collector needs packages that are not installed: {error.name}", remedy="pip install 'holdfast[server]'"
        ) from error

    on_terminal = sys.stderr.isatty() and not shell.out.as_json
    level = logging.DEBUG if shell.out.verbose else logging.WARNING if on_terminal else logging.INFO

    async def on_serving(serving: "Serving") -> None:
        _announce(shell.out, serving)
        if serving.service.advice is not None:
            _log.warning(serving.service.advice)
        while on_terminal:
            await asyncio.sleep(REFRESH_S)
            sys.stderr.write(f"\r\033[K{figures(serving)}")
            sys.stderr.flush()

    with logging_to(sys.stderr, level):
        async with shell.open(new=True) as hf:
            try:
                with _fewer_collections():
                    await run_collector(
                        hf.store,
                        section,
                        query=query_collector,
                        unsafe_any_place=unsafe_any_place,
                        on_serving=on_serving,
                    )
            except asyncio.CancelledError:
                _log.warning("cut short by a second signal")
                raise typer.Exit(TERMINATED) from None
    if on_terminal:
        sys.stderr.write("\n")


def _section(settings: IngestSection, **given: Any) -> IngestSection:
    """The settings, replaced by options that were given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return IngestSection.model_validate({**settings.model_dump(), **chosen})
    except ValidationError as error:
        where, what, remedy = problem_in(error)
        option = "--" + where[0].removesuffix("_file").replace("_", "-")
        raise Invalid(f"{option}: {what}", remedy=remedy or "see holdfast collector --help") from None


def _announce(out: Output, serving: "Serving") -> None:
    service = serving.service
    out.line(
        f"{service.collector_id} takes batches at {serving.ingest_url}, reads at {serving.private_url}"
        f" (store {service.store.spec.uri}, {service.authority.acceptance}, "
        f"authority {service.authority.authority_id})",
        document={
            "collector_id": service.collector_id,
            "ingest": serving.ingest_url,
            "private": serving.private_url,
            "store": service.store.spec.uri,
            "authority_id": service.authority.authority_id,
            "acceptance": service.authority.acceptance.value,
            "query_collector": service.query,
            "certified": service.advice is None,
            "tokens": service.tokens.valid(),
        },
    )


def figures(serving: "Serving") -> str:
    """One line with the state of the collector."""
    service = serving.service
    batches = service.metrics.batches
    parts = [
        f"{counted(batches('new'), 'batch', 'batches')} accepted",
        counted(batches("duplicate"), "duplicate"),
        counted(batches("conflict"), "conflict"),
        f"{service.limits.under_way} under way",
        f"{counted(len(service.live), 'batch', 'batches')} live",
    ]
    return ", ".join(parts)


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """Let Python look for cycles less often. Live state is hundreds of thousands of objects without cycles that stay;
    a collection after every 700 new objects, which is the default, costs a collector some percent of its time."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
