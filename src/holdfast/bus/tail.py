"""Following a namespace: events as they appear, each once, with one LIST per look.

A look begins a minute before the look before it, by the reader's clock: an event whose publisher's clock is behind by
less than that is seen, and one whose publisher is ahead hides nobody else's. One that is dated further back is not
seen here; handlers get it all the same.
"""

from collections.abc import AsyncIterator

from holdfast.base.ids import Ambient
from holdfast.bus import browse, layout
from holdfast.bus.event import Envelope
from holdfast.objects.store import Store

LAG_NS = 60 * 1_000_000_000


class Tail:
    def __init__(self, store: Store, namespace: str, ambient: Ambient) -> None:
        self._store = store
        self._namespace = namespace
        self._ambient = ambient
        self._seen: set[str] = set()
        self._from = ""

    async def begin(self, *, lines: int | None, since_ns: int | None = None) -> list[Envelope]:
        """The events to begin with: the last so many, of those since a moment if one is given."""
        self._from = self._past()
        known = await browse.names(self._store, self._namespace)
        self._seen = {name for name in known if name >= self._from}
        since = "" if since_ns is None else layout.time_name(since_ns)
        chosen = [name for name in known if name >= since]
        first = 0 if lines is None else max(0, len(chosen) - lines)
        return [each async for each in self._read(chosen[first:])]

    async def look(self) -> AsyncIterator[Envelope]:
        """What has appeared since the last look."""
        after, self._from = self._from, self._past()
        start = layout.event_key(self._namespace, after)
        keys = self._store.keys(layout.event_folder(self._namespace), after=start)
        names = [layout.name_of(key) async for key in keys]
        new = [name for name in names if name not in self._seen and layout.is_name(name)]
        self._seen = {name for name in names if name >= self._from}
        async for envelope in self._read(new):
            yield envelope

    async def _read(self, names: list[str]) -> AsyncIterator[Envelope]:
        for name in names:
            envelope = await browse.read(self._store, self._namespace, name)
            if envelope is not None:
                yield envelope

    def _past(self) -> str:
        return layout.time_name(self._ambient.clock.wall_ns() - LAG_NS)
