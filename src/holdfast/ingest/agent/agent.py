"""An agent at work: measures, reads logs, judges rules, cuts batches, and lets the shipper bring them to collectors.

Records are gathered for ``batch_ms`` and then cut into one batch. If the queue has no room, samples are dropped and
counted, lines stay in their files, and alerts wait; the next batch that fits says how much was dropped. Nothing but
``queue.append`` gives numbers, so what was dropped leaves no gap.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.base.aio import blocking
from holdfast.base.clock import iso
from holdfast.base.config import AgentSection
from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.ingest.agent.host import HostMeter
from holdfast.ingest.agent.queue import CHANGES, Queue
from holdfast.ingest.agent.rules import Rules
from holdfast.ingest.agent.sender import BUSY, SILENT, Effect, Park, Release, Say
from holdfast.ingest.agent.shipper import Shipper, ShipperOptions, Transport
from holdfast.ingest.agent.tail import Lines, Tailer
from holdfast.ingest.frame import Identity
from holdfast.ingest.records import Alert, Counter, Gauge, Log, Record, Severity, State

LOGS = "logs"
SOURCES = "log_sources"
FIRING = "firing"
CONFESSED = "confessed"
"""Of what was dropped, how much a record in the queue tells of."""
METRICS_DROPPED = "dropped_metrics"
ALERTS_DROPPED = "dropped_alerts"
DAMAGED = "damaged_bytes"
MOST_ALERTS = 1_000
"""Alerts that wait for room; more are dropped, and counted."""
MOST_LINES = 4_000
_log = logger("agent")

Spoken = Callable[[str], None]


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
        speak: Spoken = lambda text: None,
    ) -> None:
        self.queue = queue
        self._ambient = ambient
        self._section = section
        self._collectors = collectors
        self._speak = speak
        self._meter = HostMeter(folder, processes=section.processes) if section.host else None
        self._tailer = Tailer(section.logs, queue.state.get(LOGS, {}), queue.state.get(SOURCES, ()))
        self._rules = Rules(section.rules, queue.state.get(FIRING, {}))
        options = ShipperOptions(len(collectors), section.window, parked_retry_ms=section.parked_retry_ms)
        self.shipper = Shipper(queue, transport, ambient, options, self._told)
        self._samples: list[Record] = []
        self._alerts: list[Alert] = []
        self._short_since_ns: int | None = None
        """Since when there is no room."""
        self._cut_at_ns: int | None = None
        self._most_lines = self._full_lines = min(MOST_LINES, section.batch_records)
        """Of a batch; fewer while there is little room."""
        self._troubled: dict[int, str] = {}
        self.denied: str | None = None
        """Why this agent, rather than what it sends, was refused last, or refused a collector; None if neither, or no
        longer."""

    async def run(self, stop: asyncio.Event) -> bool:
        """Until ``stop``; then one last round, and what is queued is sent if collectors take it in time. Whether
        everything was sent."""
        sending = asyncio.create_task(self.shipper.run(), name="shipper")
        measuring = asyncio.create_task(self._measure_until(stop), name="measuring")
        try:
            await asyncio.wait({sending, measuring}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()  # it never ends by itself: this raises what it died of
            measuring.result()
            return await self.shipper.drain(self._section.drain_ms)
        finally:
            await _end(sending, measuring)

    async def once(self) -> bool:
        """One round, sent; whether everything that was queued has gone."""
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
            if wait_s <= 0:  # a machine that slept does not make up for it
                due, wait_s = clock.monotonic_ns(), 0.0
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            except TimeoutError:
                continue
        await self.round(last=True)

    async def round(self, *, last: bool = False) -> None:
        """Measure once, and cut a batch if it is time to."""
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
        """One batch of what was gathered, and more while logs have more to read; but measuring goes on in its time."""
        clock = self._ambient.clock
        until = clock.monotonic_ns() + self._section.interval_ms * 1_000_000
        while True:
            now = clock.wall_ns()
            lines = await blocking(self._tailer.read, now, self._most_lines)
            if not await self._queue_up(lines, now) or not lines.more:
                return
            if clock.monotonic_ns() >= until:
                self._cut_at_ns = clock.monotonic_ns()  # the next round goes on
                return

    async def _queue_up(self, lines: Lines, now_ns: int) -> bool:
        """Whether everything was queued."""
        samples, alerts = self._samples, self._alerts
        self._samples, self._alerts = [], []
        records: list[Record] = [*samples, *alerts, *self._confession(now_ns)]
        try:
            await self._append(records, lines)
            self._most_lines = min(self._full_lines, 2 * self._most_lines)
            return True
        except Unavailable as error:
            found = error
        if lines.records:
            # Lines can wait in their files, so they do not take the room of what cannot.
            self._most_lines = max(1, self._most_lines // 2)
            try:
                await self._append(records, Lines())
                return False
            except Unavailable as error:
                found = error
        await self._no_room(samples, alerts, now_ns, found)
        return False

    async def _append(self, records: list[Record], lines: Lines) -> None:
        if not records and not lines.records:
            self._tailer.commit(lines)  # the rest of a line that was too long: the next batch makes it durable
            return
        note = {
            CHANGES: {LOGS: self._tailer.changes(lines)},
            SOURCES: self._tailer.begun,
            FIRING: self._rules.state(),
            CONFESSED: self._dropped(),
        }
        await self.queue.append([*records, *lines.records], note)
        self._tailer.commit(lines)
        self._tailer.saved()
        self._short_since_ns = None
        self.shipper.notify()

    async def _no_room(self, samples: list[Record], alerts: list[Alert], now_ns: int, error: Unavailable) -> None:
        if self._short_since_ns is None:
            self._short_since_ns = now_ns
            self._speak(f"{error}; samples are dropped until there is room")
        kept = alerts[-MOST_ALERTS:]
        self._alerts = kept + self._alerts
        self.queue.count(METRICS_DROPPED, len(samples))
        self.queue.count(ALERTS_DROPPED, len(alerts) - len(kept))
        await self.queue.save_cursor()

    def _confession(self, now_ns: int) -> list[Record]:
        """What was dropped, as a record of its own in the first batch that fits."""
        records = self._dropped() - int(self.queue.state.get(CONFESSED, 0))
        if records <= 0:
            return []
        since = "" if self._short_since_ns is None else f" since {iso(self._short_since_ns)}"
        were = "record was" if records == 1 else "records were"
        text = f"{records} {were} dropped{since}: the queue had no room"
        return [Log(text, now_ns, Severity.WARN, {"source": "lmagent", "dropped": str(records)})]

    def _dropped(self) -> int:
        totals = self.queue.totals
        return totals.get(METRICS_DROPPED, 0) + totals.get(ALERTS_DROPPED, 0)

    async def _own(self, now_ns: int) -> list[Record]:
        """The agent's own figures."""
        queue, shipped = self.queue, self.shipper.shipped
        totals = queue.totals
        return [
            Gauge("lmagent_queue_bytes", queue.bytes, now_ns),
            Gauge("lmagent_queue_records", queue.waiting_records, now_ns),
            Gauge("lmagent_parked_batches", await queue.look_at_parked(), now_ns),
            Counter("lmagent_dropped_records_total", totals.get(METRICS_DROPPED, 0), now_ns, {"kind": "metrics"}),
            Counter("lmagent_dropped_records_total", totals.get(ALERTS_DROPPED, 0), now_ns, {"kind": "alerts"}),
            Counter("lmagent_damaged_bytes_total", totals.get(DAMAGED, 0), now_ns),
            Counter("lmagent_sent_batches_total", shipped.batches, now_ns),
            Counter("lmagent_send_failures_total", shipped.failures, now_ns),
        ]

    def _told(self, effect: Effect, identity: Identity | None) -> None:
        now = self._ambient.clock.wall_ns()
        match effect:
            case Park(_, route, reason, detail):
                text = f"batch {identity} is parked: {reason}: {detail}"
                self._speak(f"{text}; see `holdfast agent parked list`")
                labels = {"reason": reason, "collector": self._collectors[route]}
                self._alerts.append(Alert("lmagent_batch_parked", State.FIRING, now, labels, None, text))
            case Release(_, _, True):
                self._speak(f"batch {identity} is dropped: an operator says that what was accepted counts")
            case Say(route, reason, detail, good):
                self._say(route, reason, detail, good, now)

    def _say(self, route: int, reason: str, detail: str, good: bool, now_ns: int) -> None:
        """A collector that fails in the same way again is no news."""
        url = self._collectors[route]
        self.denied = None if good or reason in {BUSY, SILENT} else reason
        before = self._troubled.pop(route, None)
        if not good:
            self._troubled[route] = reason
        if good or before != reason:
            self._speak(f"{url} {'answers again' if good else f'does not take batches ({reason}): {detail}'}")
            state = State.RESOLVED if good else State.FIRING
            labels = {"collector": url, "reason": before or reason if good else reason}
            self._alerts.append(Alert("lmagent_collector_fails", state, now_ns, labels, None, detail))


async def _end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
