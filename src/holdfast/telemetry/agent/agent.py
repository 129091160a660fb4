"""The agent's main loop: measure the host, read logs, evaluate alert rules, and queue batches for the shipper.

Records are collected for ``batch_ms`` and then queued as one batch. If the queue is full, samples are dropped and
counted, lines stay in their files, and alerts wait. Only ``queue.append`` assigns sequence numbers, so dropped records
leave no gap.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.base.aio import blocking
from holdfast.base.config import AgentSection
from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.telemetry.agent.host import HostMeter
from holdfast.telemetry.agent.queue import Queue
from holdfast.telemetry.agent.rules import Rules
from holdfast.telemetry.agent.sender import BUSY, NO_ANSWER, Effect, Park, Release, Report
from holdfast.telemetry.agent.shipper import Shipper, ShipperOptions, Transport
from holdfast.telemetry.agent.tail import Lines, Tailer
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Alert, Counter, Gauge, Record, State

POSITION = "log "
"""Prefix of the names under which the queue keeps positions in log files; the id of the file follows."""
SOURCES = "log_sources"
FIRING = "firing"
METRICS_DROPPED = "dropped_metrics"
ALERTS_DROPPED = "dropped_alerts"
MOST_ALERTS = 1_000
"""Alerts that wait for room in the queue; more are dropped and counted."""
MOST_LINES = 4_000
_log = logger("agent")

Notify = Callable[[str], None]
"""Shows one line of text to people."""


class Agent:
    def __init__(
        self,
        queue: Queue,
        transport: Transport,
        ambient: Ambient,
        section: AgentSection,
        folder: Path,
        *,
        collectors: tuple[str, ...],
        notify: Notify = lambda text: None,
    ) -> None:
        self.queue = queue
        self._ambient = ambient
        self._section = section
        self._collectors = collectors
        self._notify = notify
        self._meter = HostMeter(folder, processes=section.processes) if section.host else None
        state = queue.state
        positions = {name.removeprefix(POSITION): state[name] for name in state if name.startswith(POSITION)}
        self._tailer = Tailer(section.logs, positions, state.get(SOURCES, ()))
        self._rules = Rules(section.rules, state.get(FIRING, {}))
        options = ShipperOptions(len(collectors), section.window, parked_retry_ms=section.parked_retry_ms)
        self.shipper = Shipper(queue, transport, ambient, options, self._on_effect)
        self._dropped = {name: int(state.get(name, 0)) for name in (METRICS_DROPPED, ALERTS_DROPPED)}
        """How many records were dropped for lack of room, ever."""
        self._samples: list[Record] = []
        self._alerts: list[Alert] = []
        self._full = False
        """Whether the queue had no room for the last batch."""
        self._cut_at_ns: int | None = None
        self._most_lines = self._full_lines = min(MOST_LINES, section.batch_records)
        """Lines per batch; fewer while the queue is nearly full."""
        self._failing: dict[int, str] = {}
        """Why each failing collector fails."""
        self.denied: str | None = None
        """Why collectors refuse this agent, or why it does not trust a collector; None if neither is the case."""

    async def run(self, stop: asyncio.Event) -> bool:
        """Run until ``stop`` is set, then do one last round and try for ``drain_ms`` to empty the queue. Returns
        whether everything was sent."""
        sending = asyncio.create_task(self.shipper.run(), name="shipper")
        measuring = asyncio.create_task(self._measure_until(stop), name="measuring")
        try:
            await asyncio.wait({sending, measuring}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()  # it ends only by an error, which this raises
            measuring.result()
            return await self.shipper.drain(self._section.drain_ms)
        finally:
            await _end(sending, measuring)

    async def once(self) -> bool:
        """Measure once and send. Returns whether everything in the queue was sent."""
        stop = asyncio.Event()
        stop.set()
        return await self.run(stop)

    async def _measure_until(self, stop: asyncio.Event) -> None:
        clock = self._ambient.clock
        due = clock.monotonic_ns()
        while not stop.is_set():
            await self.round()
            due += self._section.interval_ms * 1_000_000
            wait_s = (due - clock.monotonic_ns()) / 1_000_000_000
            if wait_s <= 0:  # after a suspend or a delay: skip the missed rounds
                due, wait_s = clock.monotonic_ns(), 0.0
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            except TimeoutError:
                continue
        await self.round(last=True)

    async def round(self, *, last: bool = False) -> None:
        """Measure once, and queue a batch if one is due."""
        now = self._ambient.clock.wall_ns()
        measured: list[Record] = [] if self._meter is None else await blocking(self._meter.measure, now)
        measured += await self._own(now)
        self._samples += measured
        monotonic = self._ambient.clock.monotonic_ns()
        self._alerts += self._rules.judge(measured, now, monotonic)
        if self._cut_at_ns is None:
            self._cut_at_ns = monotonic + self._section.batch_ms * 1_000_000
        full = len(self._samples) + len(self._alerts) >= self._section.batch_records
        if last or full or monotonic >= self._cut_at_ns or self._alerts:
            self._cut_at_ns = None
            await self.cut()

    async def cut(self) -> None:
        """Queue a batch of the records collected so far, and further batches while logs have more lines, but stop when
        the next measurement is due."""
        clock = self._ambient.clock
        until = clock.monotonic_ns() + self._section.interval_ms * 1_000_000
        while True:
            lines = await blocking(self._tailer.read, clock.wall_ns(), self._most_lines)
            if not await self._queue_up(lines) or not lines.more:
                return
            if clock.monotonic_ns() >= until:
                self._cut_at_ns = clock.monotonic_ns()  # the next round continues
                return

    async def _queue_up(self, lines: Lines) -> bool:
        """Returns whether everything was queued."""
        samples, alerts = self._samples, self._alerts
        self._samples, self._alerts = [], []
        records: list[Record] = [*samples, *alerts]
        try:
            await self._append(records, lines)
            self._most_lines = min(self._full_lines, 2 * self._most_lines)
            return True
        except Unavailable as error:
            found = error
        if lines.records:
            # Lines can wait in their files; samples and alerts cannot, so queue those alone.
            self._most_lines = max(1, self._most_lines // 2)
            try:
                await self._append(records, Lines())
                return False
            except Unavailable as error:
                found = error
        await self._no_room(samples, alerts, found)
        return False

    async def _append(self, records: list[Record], lines: Lines) -> None:
        if not records and not lines.records:
            self._tailer.commit(lines)  # the rest of a long line was skipped; the next batch saves that
            return
        saved = {name for name in self.queue.state if name.startswith(POSITION)}
        after = {f"{POSITION}{name}": position for name, position in self._tailer.positions(lines).items()}
        positions = {name: after.get(name) for name in saved | after.keys()}
        changes = {SOURCES: self._tailer.begun, FIRING: self._rules.state()}
        await self.queue.append([*records, *lines.records], {**positions, **changes, **self._dropped})
        self._tailer.commit(lines)
        self._full = False
        self.shipper.notify()

    async def _no_room(self, samples: list[Record], alerts: list[Alert], error: Unavailable) -> None:
        if not self._full:
            self._full = True
            self._notify(f"{error}; samples are dropped until there is room")
        kept = alerts[-MOST_ALERTS:]
        self._alerts = kept + self._alerts
        self._dropped[METRICS_DROPPED] += len(samples)
        self._dropped[ALERTS_DROPPED] += len(alerts) - len(kept)
        with suppress(Unavailable):  # the next batch saves it too
            await self.queue.save(self._dropped)

    async def _own(self, now_ns: int) -> list[Record]:
        """Metrics of the agent itself."""
        queue, shipped, dropped = self.queue, self.shipper.shipped, self._dropped
        return [
            Gauge("lmagent_queue_bytes", await queue.used_bytes(), now_ns),
            Gauge("lmagent_queue_records", queue.waiting_records, now_ns),
            Gauge("lmagent_parked_batches", len(await queue.parked.all()), now_ns),
            Counter("lmagent_dropped_records_total", dropped[METRICS_DROPPED], now_ns, {"kind": "metrics"}),
            Counter("lmagent_dropped_records_total", dropped[ALERTS_DROPPED], now_ns, {"kind": "alerts"}),
            Counter("lmagent_sent_batches_total", shipped.batches, now_ns),
            Counter("lmagent_send_failures_total", shipped.failures, now_ns),
        ]

    def _on_effect(self, effect: Effect, identity: BatchIdentity | None) -> None:
        now = self._ambient.clock.wall_ns()
        match effect:
            case Park(_, route, reason, detail):
                text = f"batch {identity} is parked: {reason}: {detail}"
                self._notify(f"{text}; see `holdfast agent parked list`")
                labels = {"reason": reason, "collector": self._collectors[route]}
                self._alerts.append(Alert("lmagent_batch_parked", State.FIRING, now, labels, None, text))
            case Release(_, _, True):
                self._notify(f"batch {identity} is dropped: an operator decided that the batch accepted before counts")
            case Report(route, reason, detail, good):
                self._report(route, reason, detail, good, now)

    def _report(self, route: int, reason: str, detail: str, good: bool, now_ns: int) -> None:
        """Show and record that a collector fails or works again, but not that it fails in the same way again."""
        url = self._collectors[route]
        self.denied = None if good or reason in {BUSY, NO_ANSWER} else reason
        before = self._failing.pop(route, None)
        if not good:
            self._failing[route] = reason
        if good or before != reason:
            self._notify(f"{url} {'answers again' if good else f'does not take batches ({reason}): {detail}'}")
            state = State.RESOLVED if good else State.FIRING
            labels = {"collector": url, "reason": before or reason if good else reason}
            self._alerts.append(Alert("lmagent_collector_fails", state, now_ns, labels, None, detail))


async def _end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
