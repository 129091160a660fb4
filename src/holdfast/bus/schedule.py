"""Schedules: cron ticks that become events, once each, however many workers have the schedule.

A tick's event has an id made from the schedule's name and the tick, and the tick's time as its own: create-if-absent
lets one session publish it. The last tick of each schedule is stored. ``misfire`` says what happens to ticks that came
while no worker ran: skip them, publish the latest one, or publish all.

Where clocks are put back, a schedule at fixed hours ticks once, at the first of the two; one for every hour ticks in
both. Where they are put forward, a tick within the gap comes right after it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import CroniterBadDateError, croniter

from holdfast.base import telemetry
from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.errors import BadSchedule
from holdfast.bus.event import DEFAULT_PRIORITY, Emission, Envelope, Event
from holdfast.bus.publish import Publisher
from holdfast.objects.register import UNCHANGED, Plain, Register, Unchanged
from holdfast.objects.store import Store

log = telemetry.logger("bus")

Misfire = Literal["skip", "once", "all"]
SHAPE = Plain("holdfast.bus.schedule")
MANY = 1_000
"""At most so many missed ticks are published, however long no worker ran."""
LONG_S = 3_600.0
_SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)


def _check_cron(cron: str) -> None:
    given: object = cron
    fields = given.split() if isinstance(given, str) else []
    # h and r are drawn by every reader, and then no two workers mean the same ticks
    drawn = any(each[0] in "hHrR" for each in fields)
    if len(fields) != 5 or drawn or not croniter.is_valid(cron):
        raise BadSchedule(f"{cron!r} is not a cron expression", remedy="write five fields, such as '0 3 * * *'")
    try:
        croniter(cron, _SOME_DAY).get_next(datetime)
    except CroniterBadDateError:
        raise BadSchedule(f"{cron!r} never comes", remedy="write a date that exists") from None


def _check_event(event: Event) -> None:
    given: object = event
    if not isinstance(given, Event):
        raise BadSchedule(f"a {type(given).__name__} is not an event", remedy="give an object of a class of Event")


@dataclass(frozen=True)
class Schedule:
    """Publish ``event`` whenever ``cron`` says so in the time zone ``tz``.

    Sessions that share a ``name`` share the ticks; without one it follows from the rest.
    """

    cron: str
    event: Event
    tz: str = "UTC"
    misfire: Misfire = "once"
    name: str = ""
    priority: int = DEFAULT_PRIORITY

    def __post_init__(self) -> None:
        _check_event(self.event)
        _check_cron(self.cron)
        if self.misfire not in get_args(Misfire):
            raise BadSchedule(f"{self.misfire!r} is not a misfire policy", remedy="use skip, once or all")
        try:
            ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            raise BadSchedule(f"{self.tz!r} is not a time zone", remedy="use a name like Europe/Berlin") from error
        if not self.name:
            kind = type(self.event).type_name
            text = f"{self.cron}\x00{self.tz}\x00{kind}\x00{self.event.model_dump_json()}"  # old names must not change
            object.__setattr__(self, "name", f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}")
        layout.check_part("schedule", self.name)

    def ticks(self, after_ns: int, until_ns: int) -> Iterator[int]:
        """The ticks after one moment, up to and with another."""
        for moment_ns in self._from(after_ns):
            if moment_ns > until_ns:
                return
            yield moment_ns

    def next_tick(self, after_ns: int) -> int | None:
        """The first tick after a moment; None if there is none within decades."""
        return next(self._from(after_ns), None)

    def _from(self, after_ns: int) -> Iterator[int]:
        zone = ZoneInfo(self.tz)
        hourly = self.cron.split()[1].startswith("*")
        try:
            for tick in croniter(self.cron, datetime.fromtimestamp(after_ns / 1e9, zone)).all_next(datetime):
                moment_ns = round(tick.timestamp()) * 1_000_000_000
                if moment_ns > after_ns and (hourly or not datetime.fromtimestamp(moment_ns / 1e9, zone).fold):
                    yield moment_ns
        except CroniterBadDateError:
            return

    def missed(self, last_ns: int, now_ns: int) -> list[int]:
        """Which missed ticks to publish after a time in which no worker ran."""
        ticks = [tick for tick, _ in zip(self.ticks(last_ns, now_ns), range(100_000), strict=False)]
        match self.misfire:
            case "skip":
                return []
            case "once":
                return ticks[-1:]
            case "all":
                return ticks[-MANY:]

    def envelope(self, tick_ns: int, namespace: str, write_id: str) -> Envelope:
        """The tick's event: one key for all workers, and different bytes from each, so that exactly one learns that it
        won."""
        tick_id = layout.derived_id("schedule", namespace, self.name, iso(tick_ns))
        emission = Emission.of(self.event, priority=self.priority)
        return emission.envelope(namespace, tick_id, tick_ns, schedule=self.name, write_id=write_id)


@dataclass
class Ticker:
    """Fires the ticks of some schedules from one session."""

    store: Store
    publisher: Publisher
    ambient: Ambient
    schedules: Sequence[Schedule]
    fired: int = 0
    """Ticks that this session has published."""
    _last: dict[str, int] = field(default_factory=dict)

    async def fire_due(self) -> int:
        """Publish the ticks that have come; how many of them this session published.

        An error of one schedule does not keep others from firing: it is raised after all have been tried.
        """
        fired = 0
        failure: HoldfastError | None = None
        for schedule in self.schedules:
            try:
                fired += await self._fire_due(schedule)
            except HoldfastError as error:
                log.warning("schedule %s could not fire (%s); again later", schedule.name, error)
                failure = error
        self.fired += fired
        if failure is not None:
            raise failure
        return fired

    async def _fire_due(self, schedule: Schedule) -> int:
        fired = 0
        now_ns, name = self.ambient.clock.wall_ns(), schedule.name
        known = self._last.get(name)
        ticks, seen_ns = (
            await self._begin(schedule, now_ns) if known is None else (schedule.ticks(known, now_ns), known)
        )
        for tick_ns in ticks:
            fired += await self._fire(schedule, tick_ns)
            self._last[name] = tick_ns  # one by one: what fails here is tried again from here
        self._last[name] = max(self._last.get(name, 0), seen_ns)
        return fired

    def rest_s(self) -> float:
        """Seconds until the next tick of any schedule."""
        now_ns = self.ambient.clock.wall_ns()
        nexts = [schedule.next_tick(max(now_ns, self._last.get(schedule.name, 0))) for schedule in self.schedules]
        coming = [each for each in nexts if each is not None]
        return max(0.001, (min(coming) - now_ns) / 1e9) if coming else LONG_S

    async def _begin(self, schedule: Schedule, now_ns: int) -> tuple[Iterable[int], int]:
        """The missed ticks of a schedule that this session meets for the first time, up to when it has seen then."""
        found = await self._register(schedule).read()
        if found is None:
            await self._note(schedule, now_ns)
            return (), now_ns
        last_ns = parse_iso(found.value)
        return schedule.missed(last_ns, now_ns), max(last_ns, now_ns)

    async def _fire(self, schedule: Schedule, tick_ns: int) -> bool:
        envelope = schedule.envelope(tick_ns, self.publisher.namespace, self.ambient.ids.write_id())
        won = await self.publisher.put(envelope)
        if won:
            await self._note(schedule, tick_ns)
        return won

    async def _note(self, schedule: Schedule, tick_ns: int) -> None:
        def later(value: Any) -> Any | Unchanged:
            return UNCHANGED if value is not None and parse_iso(value) >= tick_ns else iso(tick_ns)

        await self._register(schedule).edit(self.ambient.ids.unique(), later)

    def _register(self, schedule: Schedule) -> Register[Any]:
        key = layout.schedule_key(self.publisher.namespace, schedule.name)
        return Register(self.store, key, SHAPE, self.ambient)
