"""Raw blobs that no manifest names. ``accept.orphans`` has the rule: the identity is closed before a blob may go.

A shard is a range of hashes. Its task goes through the blobs and, beside them in the same order, through the derived
references by blob: what is referred to is passed over at the price of a listing. What is not is a candidate, and is
judged by its own bytes and its manifest; references only save work. Memory holds three pages, whatever the range.

A candidate is touched only if it is older than the retry horizon was when the last completed audit began. Otherwise it
is kept, and counted with the reason.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import pairwise

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.ids import Ambient
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.proof import old_enough
from holdfast.pipeline.gc.record import Sweep
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.accept import Inspect
from holdfast.telemetry.accept.authority import read_authority
from holdfast.telemetry.accept.holds import Holds
from holdfast.telemetry.accept.orphans import GOES, Fate, Judged, OrphanKeeper
from holdfast.telemetry.accept.resolutions import Resolutions
from holdfast.telemetry.accept.submit import inspect_frame

PAGE = 1_000
WORTH = 20_000
"""Blobs that are worth a task of their own."""
MOST = 256
COLLECTOR = "gc"
NO_AUDIT = "no audit has been completed"
UNREADABLE = "the manifest or the conflict of its identity cannot be read"
YOUNG = "younger than the retry horizon when the last audit began"


async def shards(store: Store) -> list[str]:
    """Ranges of hashes, ``from-until`` in two digits each. One LIST: hashes are spread evenly, so the first page tells
    how many there are.
    """
    first: tuple[Entry, ...] = ()
    async for page in store.list(layout.BLOBS):
        first = page.entries
        break
    hashes = [found for entry in first if (found := layout.blob_hash(entry.key)) is not None]
    if not hashes:
        return []
    reach = (int(hashes[-1][:8], 16) + 1) / 2**32
    about = len(hashes) / reach if len(first) >= PAGE else 0
    count = max(1, min(MOST, round(about / WORTH)))
    bounds = [round(MOST * number / count) for number in range(count + 1)]
    return [f"{low:02x}-{high:02x}" for low, high in pairwise(bounds)]


async def sweep(store: Store, ambient: Ambient, ask: Ask, out: Sweep, inspect: Inspect = inspect_frame) -> None:
    low, _, high = ask.shard.partition("-")
    keeper = await _keeper(store, ambient, inspect)
    # What a listing that is left before its end still holds goes with it.
    async with (
        aclosing(_hashes(store, layout.ACCEPTED_BY_BLOB, low, high)) as hashes,
        aclosing(_entries(store, layout.BLOBS, low, high)) as entries,
    ):
        await _go_through(entries, _Beside(hashes), keeper, out)


async def _go_through(entries: AsyncIterator[Entry], accepted: "_Beside", keeper: OrphanKeeper, out: Sweep) -> None:
    ask = out.ask
    async for entry in entries:
        sha256 = layout.blob_hash(entry.key)
        out.tally.looked += 1
        if sha256 is None or await accepted.has(sha256):
            continue
        if ask.proof_ns is None:
            out.keep(NO_AUDIT, entry.key)
        elif not old_enough(entry.modified_ns, ask.options.horizon_ns, ask.proof_ns):
            out.keep(YOUNG, entry.key)
        else:
            await _judge(keeper, entry.key, out)
        if out.spent:
            out.tally.more = True
            return


async def _judge(keeper: OrphanKeeper, key: str, out: Sweep) -> None:
    try:
        judged = await keeper.look(key)
    except (Corrupt, Incompatible):
        out.keep(UNREADABLE, key)
        return
    if judged.fate in GOES:
        await out.remove(key, judged.size, judged.fate.value)
    elif judged.fate in (Fate.ADOPT, Fate.RECORD):
        out.did("adopted" if judged.fate is Fate.ADOPT else "put on record as a conflict", key)
        if out.ask.apply:
            await _settle(keeper, judged, out.store)
    elif judged.fate is not Fate.GONE:
        out.keep(judged.fate.value, key)


async def _settle(keeper: OrphanKeeper, judged: Judged, store: Store) -> None:
    """What was adopted is found by time, as any other batch."""
    treated = await keeper.settle(judged)
    if judged.fate is Fate.ADOPT and treated.accepted is not None:
        await references.write(store, references.by_time(treated.accepted))


async def _keeper(store: Store, ambient: Ambient, inspect: Inspect) -> OrphanKeeper:
    holds = Holds(store, ambient)
    await holds.refresh()
    authority = await read_authority(store, ambient)
    return OrphanKeeper(
        store,
        ambient,
        inspect,
        collector_id=COLLECTOR,
        authority_id=None if authority is None else authority.authority_id,
        may_go=Resolutions(store, ambient).may_go,
        held=holds.covers,
    )


class _Beside:
    """Hashes in order, asked for in order."""

    def __init__(self, hashes: AsyncIterator[str]) -> None:
        self._hashes = hashes
        self._at: str | None = ""

    async def has(self, sha256: str) -> bool:
        while self._at is not None and self._at < sha256:
            self._at = await anext(self._hashes, None)
        return self._at == sha256


async def _entries(store: Store, prefix: str, low: str, high: str) -> AsyncGenerator[Entry, None]:
    """What lies below a prefix whose keys go on with a hash, from two digits up to others. ``100`` is the end."""
    pages = store.list(prefix, after=None if low == "00" else f"{prefix}{low}")
    try:
        async for page in pages:
            for entry in page.entries:
                if high != "100" and entry.key >= f"{prefix}{high}":
                    return
                yield entry
    finally:
        if isinstance(pages, AsyncGenerator):
            await pages.aclose()


async def _hashes(store: Store, prefix: str, low: str, high: str) -> AsyncGenerator[str, None]:
    async with aclosing(_entries(store, prefix, low, high)) as entries:
        async for entry in entries:
            parts = entry.key.removeprefix(prefix).split("/")
            if len(parts) > 2:
                yield parts[2]
