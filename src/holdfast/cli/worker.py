"""``holdfast worker module:handlers``: run handlers from the command line.

``handlers`` is a handler, or a list of handlers and schedules. The first SIGTERM or Ctrl-C ends the worker gracefully:
handlers may finish for a while, and events that are not handled by then are handed back to other workers. The second
one does not wait.
"""

import asyncio
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Annotated, Any

import typer

from holdfast.bus import BadHandler, Handler, Schedule
from holdfast.bus.worker.runner import Runner
from holdfast.cli import options
from holdfast.cli.endpoint import Measure, requests_of, serving
from holdfast.cli.output import Output, printable
from holdfast.cli.progress import live
from holdfast.cli.shell import Shell, imported, noun_app, stop_on_signals
from holdfast.objects.client import Usage

app = noun_app()

COUNTERS = {
    "handled": "events that were handled",
    "failed": "tries that failed",
    "dead": "events that became dead letters",
    "lost": "events that another worker took over",
    "handed_back": "events that were handed back unfinished",
    "fired": "ticks of schedules that were published",
}
GAUGES = {"in_flight": "events in handlers now", "waiting": "open events that are in no handler of this worker"}


@app.command()
async def worker(
    shell: Shell,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:HANDLERS", help="A handler, or a list of handlers and schedules.")
    ],
    namespace: options.Namespace = "default",
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when there is nothing left to do.")] = False,
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long handlers may continue after a signal.")
    ] = 30.0,
    metrics: options.MetricsAddress = None,
) -> None:
    """Hand events to handlers until a signal ends it."""
    handlers, schedules = load_handlers(target)
    metadata = {"hostname": platform.node(), "pid": os.getpid()}
    async with (
        shell.open(new=True) as hf,
        hf.runner(handlers, schedules=schedules, namespace=namespace, metadata=metadata) as runner,
        AsyncExitStack() as stack,
    ):
        text = f"working on namespace {namespace} of {hf.store.spec.uri}, handlers: "
        text += ", ".join(handler.id for handler in handlers) or "none"
        if metrics is not None:
            endpoint = serving(metrics, lambda: _measures(runner, hf.store.usage), lambda: _health(runner))
            text += f"; metrics at http://{await stack.enter_async_context(endpoint)}/metrics"
        shell.out.note(text)
        stop = asyncio.Event()
        stop_on_signals(stop)
        with _warnings(shell.out):
            async with live(shell.out, lambda: _status(runner)):
                await runner.run(until_idle=until_idle, stop=stop, grace_ms=int(grace * 1000))
        figures = {name: getattr(runner.worked, name) for name in (*COUNTERS, "waiting")}
        shell.out.record({"session": runner.session_id, **figures})


@contextmanager
def _warnings(out: Output) -> Iterator[None]:
    """Print a line on standard error for each warning, such as a try that failed. ``--verbose`` logs them itself."""
    if out.verbose:
        yield
        return
    handler = _Lines(logging.WARNING)
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # The present stream: while a status line is drawn, it prints above it.
        print(printable(" ".join(record.getMessage().split())), file=sys.stderr, flush=True)


def load_handlers(target: str) -> tuple[list[Handler], list[Schedule]]:
    """The handlers and schedules that ``module:name`` has."""
    members = imported(target, "shop.handlers:HANDLERS", BadHandler)
    for member in members:
        if not isinstance(member, Handler | Schedule):
            raise BadHandler(f"{target}: {member!r} is not a handler", remedy="declare it with @on(...)")
    if not members:
        raise BadHandler(f"{target} is empty", remedy="put handlers or schedules into it")
    handlers = [each for each in members if isinstance(each, Handler)]
    return handlers, [each for each in members if isinstance(each, Schedule)]


def _status(runner: Runner) -> str:
    worked = runner.worked
    return (
        f"handled {worked.handled:,}  in flight {worked.in_flight}  failed {worked.failed:,}  dead {worked.dead:,}  "
        f"waiting {worked.waiting:,}"
    )


def _health(runner: Runner) -> tuple[bool, dict[str, Any]]:
    silent_s = runner.silent_s
    return runner.is_healthy, {
        "session": runner.session_id,
        "namespace": runner.namespace,
        "seconds_since_poll": None if silent_s is None else round(silent_s, 3),
        "in_flight": runner.worked.in_flight,
    }


def _measures(runner: Runner, usage: Usage) -> Iterator[Measure]:
    """The runner's counters at a scrape."""
    labels = {"namespace": runner.namespace}
    for name, text in (COUNTERS | GAUGES).items():
        samples = [(labels, float(getattr(runner.worked, name)))]
        yield Measure(f"holdfast_worker_{name}", text, samples, is_gauge=name in GAUGES)
    if runner.silent_s is not None:
        text = "seconds since the store last answered a poll"
        yield Measure("holdfast_worker_seconds_since_poll", text, [(labels, runner.silent_s)], is_gauge=True)
    yield requests_of(usage, "requests to the store")
