"""The sweep: finds what polling cannot see, once per lease period among all workers of a namespace.

Polling looks after the cursors. An event may appear before them: its publisher's clock is far behind, or it is a repair
that carries an old time. The sweep lists history, a few pages at a time, round robin, and compares each ten minutes of
it with what the sections have folded. Where they differ, it reads the claims of these names: what is not settled joins
the open events, the effects of what is settled are written, and the fold is corrected.

Everything here may be done twice or not at all.
"""

from collections import defaultdict

from holdfast.base.aio import map_bounded
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.worker.claims import Claims
from holdfast.bus.worker.digest import EMPTY, fold
from holdfast.bus.worker.feed import READS_AT_ONCE, Feed
from holdfast.objects.store import Store

PAGES = 4
"""Pages of history per sweep."""


class Sweep:
    def __init__(self, store: Store, feed: Feed, claims: Claims, ambient: Ambient, *, every_ms: int) -> None:
        self._store = store
        self._feed = feed
        self._claims = claims
        self._ambient = ambient
        self._every_ns = every_ms * 1_000_000
        # Workers that start together do not sweep together.
        self._tried_ns = ambient.clock.monotonic_ns() - int(ambient.rng.random() * self._every_ns)

    def is_due(self, *, periods: int = 1) -> bool:
        """Whether no worker has swept for so many periods, as far as this worker knows."""
        every_ns = self._every_ns * periods
        if self._ambient.clock.monotonic_ns() - self._tried_ns < every_ns:
            return False
        return abs(self._ambient.clock.wall_ns() - self._feed.digest.swept_ns) >= every_ns

    def put_off(self) -> None:
        """Not again before the next period."""
        self._tried_ns = self._ambient.clock.monotonic_ns()

    async def run(self, *, whole: bool = False, alive: list[str] | None = None) -> int:
        """Sweep the next pages of history, or all of it; how many events were found that are to be handled.

        The caller has just called ``Feed.sync``. ``alive`` are the sessions that are, as far as the caller knows. The
        result is written with the next flush.
        """
        self.put_off()
        await self._feed.flush()  # the listing is compared with what the digest says
        begin = "" if whole else self._feed.digest.swept_to
        names, end = await self._listed(begin, None if whole else PAGES)
        found = 0
        for handler in self._feed.handlers:
            found += await self._compare(handler, names, begin, end)
        self._feed.swept(end, alive)
        return found

    async def _listed(self, begin: str, pages: int | None) -> tuple[list[str], str]:
        """Names from the bucket ``begin`` on, in whole buckets; and where the next starts, empty for the start."""
        folder = layout.event_folder(self._feed.namespace)
        names: list[str] = []
        count = 0
        async for page in self._store.list(folder, after=f"{folder}{begin}" if begin else None):
            names += [layout.name_of(entry.key) for entry in page.entries]
            count += 1
            if pages is not None and count >= pages:
                last = layout.bucket(names[-1]) if names else ""
                if last and last != layout.bucket(names[0]):
                    return [name for name in names if layout.bucket(name) < last], last
        return names, ""

    async def _compare(self, handler: str, names: list[str], begin: str, end: str) -> int:
        view = self._feed.fresh_view(handler)
        listed: dict[str, list[str]] = defaultdict(list)
        for name in names:
            if name <= view.cursor and name not in view.open:
                listed[layout.bucket(name)].append(name)
        found = sum(view.needs(name) for name in names)
        within = {bucket for bucket in view.folded if begin <= bucket and (not end or bucket < end)}
        for bucket in sorted(within | listed.keys()):
            seen = view.folded.get(bucket, EMPTY)
            if fold(listed[bucket]) != seen:
                settled = await self._resolve(handler, listed[bucket])
                found += len(listed[bucket]) - len(settled)
                self._feed.refold(handler, bucket, seen, fold(settled))
        return found

    async def _resolve(self, handler: str, names: list[str]) -> list[str]:
        """Which of the names are settled; the others join the open events."""

        async def look(name: str) -> bool:
            return await self._is_settled(handler, name)

        verdicts = await map_bounded(names, look, limit=READS_AT_ONCE)
        opened = [name for name, settled in zip(names, verdicts, strict=True) if not settled]
        for name in opened:
            self._feed.sort(handler, [(name, await self._feed.envelope(name))], late=True)
        return [name for name, settled in zip(names, verdicts, strict=True) if settled]

    async def _is_settled(self, handler: str, name: str) -> bool:
        claim = await self._claims.look(name, handler)
        if claim is None:
            envelope = await self._feed.envelope(name)
            return envelope is None or not self._feed.takes(handler, envelope.type)
        if claim.settled:
            await self._claims.effects(claim, await self._feed.envelope(name) if claim.dead_ns else None)
        return claim.settled
