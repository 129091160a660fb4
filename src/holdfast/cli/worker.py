"""``holdfast worker module:handlers``: run handlers from the command line.

``handlers`` is a handler, or a list of handlers and schedules. SIGTERM and Ctrl-C end it gracefully: handlers may
finish for a while, and what has not finished is handed back to other workers. A second signal does not wait.
"""

import asyncio
import os
import platform
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import HoldfastError
from holdfast.bus import BadHandler, Handler, Schedule
from holdfast.bus.worker.runner import Runner
from holdfast.cli.endpoint import new_registry, serve
from holdfast.cli.output import Output
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.client import Usage
from holdfast.platform.open import open_platform

if TYPE_CHECKING:
    from prometheus_client.core import Metric

app = noun_app()

REFRESH_SECONDS = 0.2


@app.command()
async def worker(
    shell: Shell,
    target: Annotated[str, typer.Argument(metavar="MODULE:HANDLERS", help="A handler, or a list of them.")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="The events' namespace.")
    ] = "default",
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when there is nothing left to do.")] = False,
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long handlers may go on after a signal.")
    ] = 30.0,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /metrics and /health there; port 0 takes a free one."),
    ] = None,
) -> None:
    """Hand events to handlers, until a signal ends it."""
    handlers, schedules = load_handlers(target)

    settings = shell.settings
    metadata = {"hostname": platform.node(), "pid": os.getpid()}
    async with (
        open_platform(settings.store.uri, settings=settings) as hf,
        hf.runner(handlers, schedules=schedules, namespace=namespace, metadata=metadata) as runner,
    ):
        address = await serve_metrics(metrics, runner, hf.store.usage) if metrics is not None else None
        if address is not None:
            shell.out.note(f"metrics at http://{address}/metrics")
        stop = asyncio.Event()
        stop_on_signals(stop, asyncio.current_task())
        view = asyncio.ensure_future(_watch(shell.out, runner))
        try:
            await runner.run(until_idle=until_idle, stop=stop, grace_ms=int(grace * 1000))
        finally:
            view.cancel()
            await asyncio.gather(view, return_exceptions=True)
        shell.out.record(_figures(runner))


def load_handlers(target: str) -> tuple[list[Handler], list[Schedule]]:
    """What ``module:name`` holds, from the working folder or anywhere on the path."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise BadHandler(f"{target!r} is not MODULE:HANDLERS", remedy="write it like shop.handlers:HANDLERS")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        said = f"{error}" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        remedy = error.remedy if isinstance(error, HoldfastError) else None
        raise BadHandler(f"{target}: {said}", remedy=remedy or "name an importable module and what is in it") from error
    members: list[Any] = list(found) if isinstance(found, Iterable) else [found]
    for member in members:
        if not isinstance(member, Handler | Schedule):
            raise BadHandler(f"{target}: {member!r} is not a handler", remedy="declare it with @on(...)")
    if not members:
        raise BadHandler(f"{target} is empty", remedy="put handlers or schedules into it")
    handlers = [each for each in members if isinstance(each, Handler)]
    return handlers, [each for each in members if isinstance(each, Schedule)]


def stop_on_signals(stop: asyncio.Event, task: "asyncio.Task[Any] | None") -> None:
    """The first signal ends the worker gracefully, the second cancels its task, the third ends the process."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError, ValueError):  # only the main thread can handle signals
            loop.add_signal_handler(number, on_signal)


def _figures(runner: Runner) -> dict[str, object]:
    worked = runner.worked
    return {
        "session": runner.session_id,
        "handled": worked.handled,
        "failed": worked.failed,
        "dead": worked.dead,
        "lost": worked.lost,
        "handed_back": worked.handed_back,
        "fired": worked.fired,
        "waiting": worked.waiting,
    }


async def _watch(out: Output, runner: Runner) -> None:
    """Update one line on the terminal: throughput, in flight, failures, dead."""
    console = out.console(stderr=True)
    if out.as_json or not console.file.isatty():
        return
    from rich.live import Live  # noqa: PLC0415  # slow to import, and unused without a terminal
    from rich.text import Text  # noqa: PLC0415  # as above

    before = 0
    with Live(console=console, auto_refresh=False, transient=True) as display:
        while True:
            worked = runner.worked
            rate = (worked.handled - before) / REFRESH_SECONDS
            before = worked.handled
            line = (
                f"{rate:6.0f}/s  handled {worked.handled:,}  in flight {worked.in_flight}  "
                f"failed {worked.failed:,}  dead {worked.dead:,}  waiting {worked.waiting:,}"
            )
            display.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            await asyncio.sleep(REFRESH_SECONDS)


COUNTERS = {
    "handled": "events that were handled",
    "failed": "tries that failed",
    "dead": "events that became dead letters",
    "lost": "events that another worker took over",
    "handed_back": "events that were handed back unfinished",
    "fired": "ticks of schedules that were published",
}
GAUGES = {"in_flight": "events in handlers now", "waiting": "open events that are in no handler of this worker"}


async def serve_metrics(where: str, runner: Runner, usage: Usage) -> str:
    """Serve at ``host:port`` until the loop ends; where it really is."""
    return await serve(where, new_registry(_Collector(runner, usage)), lambda: (runner.is_healthy, _health(runner)))


def _health(runner: Runner) -> dict[str, Any]:
    silent_s = runner.silent_s
    return {
        "session": runner.session_id,
        "namespace": runner.namespace,
        "seconds_since_poll": None if silent_s is None else round(silent_s, 3),
        "in_flight": runner.worked.in_flight,
    }


class _Collector:
    """Reads the runner's counters at every scrape; it keeps none of its own."""

    def __init__(self, runner: Runner, usage: Usage) -> None:
        self._runner = runner
        self._usage = usage

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415  # an extra

        namespace = [self._runner.namespace]
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"holdfast_worker_{name}", text, labels=["namespace"])
            counter.add_metric(namespace, getattr(self._runner.worked, name))
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"holdfast_worker_{name}", text, labels=["namespace"])
            gauge.add_metric(namespace, getattr(self._runner.worked, name))
            yield gauge
        if self._runner.silent_s is not None:
            text = "seconds since the store last answered a poll"
            silent = GaugeMetricFamily("holdfast_worker_seconds_since_poll", text, labels=["namespace"])
            silent.add_metric(namespace, self._runner.silent_s)
            yield silent
        requests = CounterMetricFamily("holdfast_store_requests", "requests to the store", labels=["verb"])
        for verb, count in sorted(self._usage.by_verb.items()):
            requests.add_metric([verb], count)
        yield requests
