"""What has still to be derived: a mark per hour and listing, made by whoever changed the hour, and removed when a
generation covers it.

A mark is made after its listing, and removed only by a driver that saw it before it listed the hour: so a mark that is
gone was covered. One that is made again only costs a look.
"""

from collections import defaultdict

from holdfast.base import codec
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Store
from holdfast.pipeline import layout
from holdfast.pipeline.plan import DAY_HOURS
from holdfast.telemetry.rollup.layout import HOUR_NS, hour_start_ns
from holdfast.telemetry.rollup.manifest import Kind

LENGTH = {Kind.ROLLUP: 1, Kind.INDEX: 1, Kind.DAILY: DAY_HOURS, layout.MERGE: 1}


async def mark(store: Store, ambient: Ambient, kind: str, hour: int, ident: str) -> None:
    body = codec.encode({"kind": str(kind), "hour": layout.hour_name(hour), "write_id": ambient.ids.write_id()})
    await store.put(layout.due_key(kind, hour, ident), body, CREATE)


async def marks(store: Store, kind: str) -> dict[int, list[str]]:
    """Keys of marks, by hour, in order."""
    found: dict[int, list[str]] = defaultdict(list)
    async for key in store.keys(layout.due_folder(kind)):
        mark = layout.due_in(key)
        if mark is not None:
            found[mark[1]].append(key)
    return dict(sorted(found.items()))


def ripe(hours: dict[int, list[str]], kind: str, settle_ns: int, now_ns: int) -> dict[int, list[str]]:
    """Those that have ended long enough ago; all, if nobody waits for them to settle."""
    if not settle_ns:
        return hours
    return {
        hour: keys for hour, keys in hours.items() if hour_start_ns(hour) + LENGTH[kind] * HOUR_NS + settle_ns <= now_ns
    }


async def clear(store: Store, keys: list[str]) -> None:
    await store.delete_many(keys)
