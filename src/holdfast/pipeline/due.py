"""Which hours must be derived: a mark per hour and listing, created after the listing, and removed when a generation
covers it; and the hours that a request names. A driver removes only marks that it saw before it listed the hour, so a
mark that is gone was covered. A mark that is created a second time costs one more read. Marks of the kind ``finish``
name hours in several units: once no more batches of such an hour are expected, it is derived once more, in as few units
as its records allow.
"""

from collections import defaultdict

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Store
from holdfast.pipeline import layout
from holdfast.pipeline.units import DAY_HOURS
from holdfast.telemetry.rollup.layout import BATCHES_BY_HOUR, HOUR_NS, hour_in, hour_name, hour_path, hour_start_ns
from holdfast.telemetry.rollup.manifest import Kind

LENGTH = {Kind.ROLLUP: 1, Kind.DAILY: DAY_HOURS, layout.FINISH: 1}
DAYS_AT_ONCE = 7
"""Days of a request that one run derives."""

Marks = dict[int, list[str]]
"""Keys of marks by hour, in order of time."""


async def mark(store: Store, ambient: Ambient, kind: str, hour: int, ident: str) -> None:
    body = codec.encode({"kind": str(kind), "hour": hour_name(hour), "write_id": ambient.ids.write_id()})
    await store.put(layout.due_key(kind, hour, ident), body, CREATE)


async def marks(store: Store, kind: str, wait_ns: int = 0, now_ns: int = 0) -> Marks:
    """With ``wait_ns`` those of hours, or days, that ended at least so long ago. Marks of the kind ``finish`` must be
    as old themselves.
    """
    found: Marks = defaultdict(list)
    young: set[int] = set()
    async for page in store.list(layout.due_folder(kind)):
        for entry in page.entries:
            named = layout.due_in(entry.key)
            if named is None:
                continue
            hour = named[1]
            found[hour].append(entry.key)
            ended_ns = hour_start_ns(hour) + LENGTH[kind] * HOUR_NS
            if wait_ns and max(ended_ns, entry.modified_ns if kind == layout.FINISH else 0) + wait_ns > now_ns:
                young.add(hour)
    return {hour: keys for hour, keys in sorted(found.items()) if hour not in young}


# --- hours that a request names ---


async def split(store: Store, request: Document) -> list[Document]:
    """Divide a long range of time into requests that are each small enough for one run."""
    since, until = request.get("since_ns"), request.get("until_ns")
    if since is None and until is None:
        return [request]
    found = await _days(store, since, until)
    parts: list[Document] = []
    for start in range(0, len(found), DAYS_AT_ONCE):
        group = found[start : start + DAYS_AT_ONCE]
        first, last = hour_start_ns(group[0]), hour_start_ns(group[-1] + DAY_HOURS)
        low = first if since is None else max(since, first)
        parts.append({**request, "since_ns": low, "until_ns": last if until is None else min(until, last)})
    return parts


async def hours_between(store: Store, since: int | None, until: int | None, length: int = 1) -> list[int]:
    """Hours in this range that have batches; with ``length`` 24, the first hour of each day that has any."""
    found: set[int] = set()
    for day in await _days(store, since, until):
        if length == DAY_HOURS:
            found.add(day)
            continue
        date = hour_path(day).partition("/")[0]
        async for page in store.list(f"{BATCHES_BY_HOUR}{date}/", delimiter=True):
            found |= {
                hour for hour in map(hour_in, page.folders) if hour is not None and _within(hour, 1, since, until)
            }
    return sorted(found)


async def _days(store: Store, since: int | None, until: int | None) -> list[int]:
    """The first hour of each day in this range that has any batches."""
    found: set[int] = set()
    async for page in store.list(BATCHES_BY_HOUR, delimiter=True):
        named = [hour_in(f"{folder}hour=00/") for folder in page.folders]
        found |= {day for day in named if day is not None and _within(day, DAY_HOURS, since, until)}
    return sorted(found)


def _within(hour: int, length: int, since: int | None, until: int | None) -> bool:
    begins, ends = hour_start_ns(hour), hour_start_ns(hour + length)
    return (since is None or ends > since) and (until is None or begins < until)
