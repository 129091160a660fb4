"""What a task of garbage collection does: one shard of one kind. It may be run twice, at once or by a zombie."""

from collections.abc import Awaitable, Callable

from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.pipeline.gc import batches, derived, events, gatherings, ontology, orphans, records, runs, windows
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.record import Sweep
from holdfast.runs.engine.workflow import ambient_of

Sweeper = Callable[[Store, Ambient, Ask, Sweep], Awaitable[None]]
SWEEPERS: dict[str, Sweeper] = {
    "orphans": orphans.sweep,
    "derived": derived.sweep,
    "gatherings": gatherings.sweep,
    "ontology": ontology.sweep,
    "runs": runs.sweep,
    "records": records.sweep,
    "expire-batches": batches.expire,
    "expire-rollups": windows.expire,
    "expire-runs": runs.expire,
    "expire-events": events.expire,
}
UNREADABLE = "what decides about the rest of it cannot be read"


async def gc_task(store: Store, payload: bytes) -> list[Document]:
    """What cannot be read proves nothing: the rest of the shard stays, and other shards and kinds go on."""
    ask = Ask.of(payload)
    out = Sweep(store, ask)
    try:
        await SWEEPERS[ask.kind](store, ambient_of(store), ask, out)
    except (Corrupt, Incompatible) as error:
        out.keep(UNREADABLE, str(error))
    return [await out.row()]
