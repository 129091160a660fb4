"""Times that were asked for, as hours that there is anything of. Reads alone."""

from holdfast.base.codec import Document
from holdfast.objects.store import Store
from holdfast.pipeline.plan import DAY_HOURS
from holdfast.telemetry.rollup import layout

DAYS_AT_ONCE = 7
"""That one run takes: fewer hours than it would take of those that are due."""


async def split(store: Store, request: Document) -> list[Document]:
    """A long time as several requests, each small enough for one run."""
    since, until = request.get("since_ns"), request.get("until_ns")
    if since is None and until is None:
        return [request]
    found = await days(store, since, until)
    parts: list[Document] = []
    for place in range(0, len(found), DAYS_AT_ONCE):
        group = found[place : place + DAYS_AT_ONCE]
        first, last = layout.hour_start_ns(group[0]), layout.hour_start_ns(group[-1] + DAY_HOURS)
        low = first if since is None else max(since, first)
        parts.append({**request, "since_ns": low, "until_ns": last if until is None else min(until, last)})
    return parts


async def days(store: Store, since: int | None, until: int | None) -> list[int]:
    """The first hours of days in this time that have any batches."""
    found: set[int] = set()
    async for page in store.list(layout.BATCHES_BY_HOUR, delimiter=True):
        named = [layout.hour_in(f"{folder}hour=00/") for folder in page.folders]
        found |= {day for day in named if day is not None and within(day, DAY_HOURS, since, until)}
    return sorted(found)


async def hours(store: Store, since: int | None, until: int | None) -> set[int]:
    """All hours with batches of the days that have a part in this time."""
    found: set[int] = set()
    for day in await days(store, since, until):
        date = layout.hour_path(day).partition("/")[0]
        async for page in store.list(f"{layout.BATCHES_BY_HOUR}{date}/", delimiter=True):
            found |= {hour for hour in map(layout.hour_in, page.folders) if hour is not None}
    return found


def within(hour: int, length: int, since: int | None, until: int | None) -> bool:
    """Whether so many hours from this one on have a part in this time."""
    begins, ends = layout.hour_start_ns(hour), layout.hour_start_ns(hour + length)
    return (since is None or ends > since) and (until is None or begins < until)
