"""``holdfast collector``: accept telemetry over HTTP, until a signal ends it.

Standard output has one line, or with ``--json`` one document, as soon as it listens. Standard error has logs, JSON a
line, once the store is opened (why it does not start is said as by every command); on a terminal only warnings are
there, and a line of figures is kept up to date instead.
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
COLLECT_AFTER = (20_000, 20, 100)
"""Python looks for cycles after so many new objects more than freed ones; then after so many such looks."""

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
    await _serve(shell, section, query=query_collector, unsafe_any_place=unsafe_any_place)


@contextmanager
def _extra_packages() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise HoldfastError(
            f"a collector needs packages that are not installed: {error.name}", remedy="pip install 'holdfast[server]'"
        ) from error


def _section(settings: IngestSection, **given: Any) -> IngestSection:
    """The settings, with what the command line says above them."""
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return IngestSection.model_validate({**settings.model_dump(), **chosen})
    except ValidationError as error:
        where, what, remedy = problem_in(error)
        option = "--" + where[0].removesuffix("_file").replace("_", "-")
        raise Invalid(f"{option}: {what}", remedy=remedy or "see holdfast collector --help") from None


async def _serve(shell: Shell, section: IngestSection, *, query: bool, unsafe_any_place: bool) -> None:
    with _extra_packages():
        from holdfast.server.logs import logging_to  # noqa: PLC0415  # the server's packages are an extra
        from holdfast.server.run import run_collector  # noqa: PLC0415  # as above
    from holdfast.objects.open import open_store  # noqa: PLC0415  # as above
    from holdfast.telemetry.accept import layout  # noqa: PLC0415  # as above

    watched = sys.stderr.isatty() and not shell.out.as_json
    level = logging.DEBUG if shell.out.verbose else logging.WARNING if watched else logging.INFO

    async def on_serving(serving: "Serving") -> None:
        _announce(shell.out, serving)
        if serving.service.check.advice is not None:
            _log.warning(serving.service.check.advice)
        while watched:
            await asyncio.sleep(REFRESH_S)
            sys.stderr.write(f"\r\033[K{figures(serving)}")
            sys.stderr.flush()

    settings = shell.settings
    opening = open_store(settings.store.uri, settings=settings, immutable=layout.immutable)
    with logging_to(sys.stderr, level):
        async with opening as store:
            try:
                with _few_looks_for_cycles():
                    await run_collector(
                        store,
                        section,
                        query=query,
                        unsafe_any_place=unsafe_any_place,
                        on_serving=on_serving,
                    )
            except asyncio.CancelledError:
                _log.warning("cut short by a second signal")
                raise typer.Exit(TERMINATED) from None
    if watched:
        sys.stderr.write("\n")


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
            "certified": service.check.certificate is not None,
            "tokens": service.tokens.valid(),
        },
    )


def figures(serving: "Serving") -> str:
    """One line on how things stand."""
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
def _few_looks_for_cycles() -> Iterator[None]:
    """Live state is hundreds of thousands of objects that stay, without cycles. To go through them every 700 new
    objects, as Python does, takes a collector some hundredths of its time."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
