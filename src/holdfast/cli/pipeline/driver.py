"""What commands of the pipeline share: a driver of its jobs, which is a store, an engine, and the settings for them."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.cli.progress import Watch
from holdfast.cli.shell import Shell

if TYPE_CHECKING:
    from holdfast.base.codec import Document
    from holdfast.base.config import Settings
    from holdfast.objects.client import Client
    from holdfast.pipeline import Engine, Options, Ran

LOCAL = "local"
"""The master that is this process, without Spark."""

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


@dataclass(frozen=True)
class Driver:
    store: "Client"
    engine: "Engine"
    options: "Options"
    watch: Watch

    async def run(
        self, jobs: Sequence[str], request: "Document | None" = None, *, takeover: bool = False
    ) -> "list[Ran]":
        """Run these jobs until none has anything left to do, while the terminal shows the step of the present one."""
        from holdfast import pipeline  # noqa: PLC0415  # loads Arrow, which takes a while

        async with self.watch.shown():
            return await pipeline.run(
                self.store,
                jobs,
                engine=self.engine,
                options=self.options,
                request=request,
                takeover=takeover,
                say=self.watch.say,
            )


@asynccontextmanager
async def driver(
    shell: Shell,
    master: str | None = None,
    conf: Sequence[str] | None = None,
    *,
    new: bool = False,
    collects_garbage: bool = False,
    settle_ns: int | None = None,
    service: bool = False,
    opening: str | None = None,
) -> AsyncIterator[Driver]:
    """``new``: the command may be the first to write to this store. ``opening`` is printed before the first step."""
    master = check_master(shell, master)
    settings = as_garbage_collector(shell.settings) if collects_garbage else shell.settings
    watch = Watch(shell.out, opening)
    async with (
        shell.open(new=new, settings=settings) as hf,
        _engine(shell, hf.store, master, conf or (), watch) as engine,
    ):
        yield Driver(hf.store, engine, options_of(shell.settings, settle_ns, service=service), watch)


def check_master(shell: Shell, master: str | None) -> str:
    """The master of the option or of the setting; an invalid one is refused before any work begins."""
    from holdfast.pipeline.engine import session  # noqa: PLC0415  # a help page needs none of it

    wanted = master or shell.settings.pipeline.master
    return wanted if wanted == LOCAL else session.check_master(wanted)


def as_garbage_collector(settings: "Settings") -> "Settings":
    """With the credentials of the one role that may delete, if the settings have any."""
    own = settings.gc
    if own.access_key_id is None:
        return settings
    given = {"access_key_id": own.access_key_id, "session_token": own.session_token}
    secret = {"secret_access_key": own.secret_access_key, "secret_access_key_file": None, "session_token_file": None}
    return settings.model_copy(update={"s3": settings.s3.model_copy(update={**given, **secret})})


def options_of(settings: "Settings", settle_ns: int | None = None, *, service: bool = False) -> "Options":
    from holdfast.pipeline import Options  # noqa: PLC0415  # a help page needs none of it
    from holdfast.pipeline.gc.options import gc_options  # noqa: PLC0415  # as above
    from holdfast.telemetry.frame import Limits  # noqa: PLC0415  # as above
    from holdfast.telemetry.rollup.layout import Windows  # noqa: PLC0415  # as above

    section, ingest = settings.pipeline, settings.ingest
    if settle_ns is None:
        settle_ns = section.settle_s * 1_000_000_000 if service else 0
    return Options(
        full_scan_every_ns=section.full_scan_every_s * 1_000_000_000,
        settle_ns=settle_ns,
        merge_after_ns=section.merge_after_s * 1_000_000_000,
        windows=Windows.of(name.strip() for name in section.windows.split(",")),
        batches_at_once=section.batches_at_once,
        records_per_unit=section.records_per_unit,
        stale_hours=section.stale_hours,
        lease_ttl_ms=section.lease_ttl_ms,
        limits=Limits(frame_bytes=int(ingest.frame_bytes), payload_bytes=int(ingest.payload_bytes)),
        settings=settings,
        gc=gc_options(settings),
    )


@asynccontextmanager
async def _engine(
    shell: Shell, store: "Client", master: str, conf: Sequence[str], watch: Watch
) -> "AsyncIterator[Engine]":
    from holdfast.pipeline import Inline  # noqa: PLC0415  # as above

    if master == LOCAL:
        if conf:
            raise Invalid(f"--conf {conf[0]} is about Spark, and local is without it", remedy="leave one of them out")
        yield Inline(memory=int(shell.settings.pipeline.memory))
        return
    if store.spec.scheme == "memory":
        raise Invalid(
            "a store in memory is this process's alone, and Spark's workers are others", remedy="--master local"
        )
    from holdfast.pipeline.engine.session import Spark, check_ready, read_conf, start  # noqa: PLC0415  # as above
    from holdfast.pipeline.engine.spark import SparkEngine  # noqa: PLC0415  # as above

    settings = {name: value for each in conf for name, value in read_conf(each).items()}
    hush_py4j()

    def begin() -> Spark:
        watch.say(f"starting Spark at {master}", 0, 0)
        return start(master, settings, verbose=shell.out.verbose)

    engine = SparkEngine(begin, store.spec)
    await blocking(check_ready, master)
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
