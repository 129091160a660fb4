"""Settled events past their retention. ``bus.cleanup`` has the rules: the boundary first, then events, then claims."""

from collections.abc import Sequence

from holdfast.base.ids import Ambient
from holdfast.bus import Bus, layout
from holdfast.objects.store import Store
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.record import Sweep
from holdfast.platform.outbox import Outbox

SETTLED = "every handler is done with it, and it is older than events are kept"


async def shards(store: Store) -> list[str]:
    """Namespaces."""
    found: list[str] = []
    async for page in store.list(layout.EVENTS, delimiter=True):
        found += [folder.removeprefix(layout.EVENTS).rstrip("/") for folder in page.folders]
    return found


async def expire(store: Store, ambient: Ambient, ask: Ask, out: Sweep) -> None:
    if ask.options.events_ns is None:
        return
    intents: list[str] = []
    count = 0

    async def tell(keys: Sequence[str]) -> None:
        nonlocal count
        count = len(keys)
        out.tally.looked += count
        intents.extend(await out.about_to([(key, 0, SETTLED) for key in keys]))

    mend = Outbox(store, ambient).mend if ask.apply else None
    bus = Bus(store, ambient, ask.shard, mend=mend)
    before_ns = min(ask.now_ns - ask.options.events_ns, ambient.clock.wall_ns())
    await bus.cleanup(before_ns=before_ns, dry_run=not ask.apply, tell=tell)
    await out.concluded(intents, count)
