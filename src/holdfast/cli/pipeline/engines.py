"""What commands of the pipeline share: the store, what runs their tasks, and what is set about them."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.aio import blocking
from holdfast.base.clock import parse_span
from holdfast.base.errors import Invalid
from holdfast.cli.pipeline.view import Watch
from holdfast.cli.shell import Shell

if TYPE_CHECKING:
    from holdfast.base.config import Settings
    from holdfast.objects.client import Client
    from holdfast.pipeline import Engine, Options

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark's master; local runs in this process, without Spark (default: the setting pipeline.master, "
        "local[*]).",
    ),
]
Conf = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; repeatable.")]
Takeover = Annotated[bool, typer.Option("--takeover", help="Do not wait for another driver: fence it.")]
Latest = Annotated[int, typer.Option(min=1, metavar="N", help="How many to list at most, the latest first.")]

LOCAL = "local"


@asynccontextmanager
async def open_pipeline(shell: Shell, *, new: bool = False) -> "AsyncIterator[Client]":
    """``new``: the command may be the first to write to this store."""
    from holdfast.platform.open import open_platform  # noqa: PLC0415  # a help page needs none of it

    uri = shell.settings.store.uri if new else shell.existing_store()
    async with open_platform(uri, settings=shell.settings) as hf:
        yield hf.store


@asynccontextmanager
async def open_as_collector_of_garbage(shell: Shell) -> "AsyncIterator[Client]":
    """With the credentials of the one role that may delete, where settings give any."""
    from holdfast.platform.open import open_platform  # noqa: PLC0415  # as above

    settings = as_collector_of_garbage(shell.settings)
    async with open_platform(shell.existing_store(), settings=settings) as hf:
        yield hf.store


def as_collector_of_garbage(settings: "Settings") -> "Settings":
    own = settings.gc
    if own.access_key_id is None:
        return settings
    given = {"access_key_id": own.access_key_id, "session_token": own.session_token}
    secret = {"secret_access_key": own.secret_access_key, "secret_access_key_file": None, "session_token_file": None}
    return settings.model_copy(update={"s3": settings.s3.model_copy(update={**given, **secret})})


def check_master(shell: Shell, master: str | None) -> str:
    """The master that is asked for, by option or setting; an invalid one is refused before any work begins."""
    from holdfast.pipeline.engine import session  # noqa: PLC0415  # as above

    wanted = master or shell.settings.pipeline.master
    return wanted if wanted == LOCAL else session.check_master(wanted)


@asynccontextmanager
async def engine_for(
    shell: Shell, store: "Client", master: str | None, conf: list[str], watch: Watch | None = None
) -> "AsyncIterator[Engine]":
    """``watch`` says when Spark starts, which takes seconds."""
    from holdfast.pipeline import Inline  # noqa: PLC0415  # as above

    wanted = check_master(shell, master)
    if wanted == LOCAL:
        if conf:
            raise Invalid(f"--conf {conf[0]} is about Spark, and local is without it", remedy="leave one of them out")
        yield Inline()
        return
    if store.spec.scheme == "memory":
        raise Invalid(
            "a store in memory is this process's alone, and Spark's workers are others", remedy="--master local"
        )
    from holdfast.pipeline.engine.session import Spark, check_ready, read_conf, start  # noqa: PLC0415  # as above
    from holdfast.pipeline.engine.spark import SparkEngine  # noqa: PLC0415  # as above

    settings = {name: value for each in conf for name, value in read_conf(each).items()}
    hush_py4j()
    watch = watch or Watch(shell.out)

    def begin() -> Spark:
        watch.say(f"starting Spark at {wanted}", 0, 0)
        return start(wanted, settings, verbose=shell.out.verbose)

    engine = SparkEngine(begin, store.spec)
    await blocking(check_ready, wanted)
    try:
        yield engine
    finally:
        await engine.close()


def hush_py4j() -> None:
    """Keep py4j from logging a traceback when a JVM dies: it adds a handler to a root logger without one. The command
    reports the end of the JVM in one line; with --verbose the root logger has a handler already.
    """
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())


def options_of(shell: Shell, settle: str | None, *, service: bool) -> "Options":
    from holdfast.pipeline import Options  # noqa: PLC0415  # as above
    from holdfast.pipeline.gc.options import gc_options  # noqa: PLC0415  # as above
    from holdfast.telemetry.frame import Limits  # noqa: PLC0415  # as above
    from holdfast.telemetry.rollup.layout import Windows  # noqa: PLC0415  # as above

    section, ingest = shell.settings.pipeline, shell.settings.ingest
    settle_ns = section.settle_s * 1_000_000_000 if service else 0
    return Options(
        full_scan_every_ns=section.full_scan_every_s * 1_000_000_000,
        settle_ns=settle_ns if settle is None else parse_span(settle),
        merge_after_ns=section.merge_after_s * 1_000_000_000,
        windows=Windows.of(name.strip() for name in section.windows.split(",")),
        batches_at_once=section.batches_at_once,
        records_per_unit=section.records_per_unit,
        stale_hours=section.stale_hours,
        lease_ttl_ms=section.lease_ttl_ms,
        limits=Limits(frame_bytes=int(ingest.frame_bytes), payload_bytes=int(ingest.payload_bytes)),
        settings=shell.settings,
        gc=gc_options(shell.settings),
    )
