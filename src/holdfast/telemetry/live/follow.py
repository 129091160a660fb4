"""Batches that others accepted, brought into live state: at start, and for a query collector all the time.

Found by what collectors gathered and by references by time (both hold the manifests), hour by hour; what a crash left
out of these is found by ``audit``, which lists the manifests themselves: at once if a collector fell silent or says
that something is listed nowhere (``heard``), and otherwise now and then. A batch costs one GET for its bytes, and one
for its reference if it was not gathered; a gathering costs one GET. A look costs one LIST for the marks of collectors,
one per thousand references of the hour and one per thousand gatherings since the last look. Reads alone, so any number
of collectors may do it.

Errors: ``Unavailable`` ends a round, and the next one goes on. Bytes that are missing or are not what their manifest
says are counted in ``problems``, logged, and not asked for again.
"""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from holdfast.base.aio import blocking, map_bounded, stream_bounded
from holdfast.base.clock import Clock
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.gathering import manifests_in
from holdfast.telemetry.accept.heard import SKEW_NS, Heard, Wanted
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.frame import Batch, Limits, decode
from holdfast.telemetry.live.state import Live, size_of

AT_ONCE = 8
"""Reads under way: the path of acceptance has the better right to the connections."""
EXPANDED = 32
"""Gatherings that are taken apart at a time: what does not fit into live state is not read."""
DECODERS = 2
"""Frames that are unpacked at a time."""
AUDIT_PAGES = 200
"""Of a thousand manifests each, in one round; an audit of more goes on in another."""
AUDIT_EVERY = 300
"""Rounds between two parts of an audit that nothing calls for."""

_HOUR_NS = 3_600 * 1_000_000_000
_log = logger("ingest.follow")

_Found = tuple[int, str | AcceptedManifest]
"""When it was written, and a manifest, or where one or more are."""


@dataclass
class _Audit:
    """All manifests, in parts."""

    wanted: dict[str, Wanted]
    after: str | None = None


@dataclass
class Follower:
    store: Store
    live: Live
    clock: Clock
    limits: Limits
    own: str = ""
    """The session of the collector that this is part of."""
    problems: int = 0
    followed_ns: int | None = None
    """When the last round began that has seen everything."""
    through_ns: int | None = None
    """What any collector acknowledged before, by its own clock, is here: if ``audited``, and nobody is wanting."""
    audited: bool = False
    """Whether an audit has seen every manifest."""
    heard: Heard = field(init=False)
    _audit: _Audit | None = None
    _decoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODERS))
    _seen: dict[str, set[bytes]] = field(default_factory=dict)
    """By hour, the first bytes of the ids of manifests and gatherings that need not be looked at again."""

    def __post_init__(self) -> None:
        self.heard = Heard(self.store, self.clock, self.own, self.live.window_ns + 2 * SKEW_NS)

    async def rebuild(self, written_ns: int = 0) -> int:
        """Bring in what the window holds, the newest first, until live state is full; how many batches. Of gatherings
        those that were written since then."""
        return await self._round(self.clock.wall_ns() - self.live.window_ns, written_ns)

    async def poll(self) -> int:
        """Bring in what has come since the last look."""
        began = self.clock.wall_ns()
        await self.heard.look()  # first: what marks promise is there when the rest is listed
        through = self.heard.through_ns(began)
        last = began if self.followed_ns is None else self.followed_ns
        since = max(last, began - self.live.window_ns) - SKEW_NS
        count = await self._round(since, 0 if self.followed_ns is None else last - SKEW_NS)
        self.followed_ns, self.through_ns = began, through
        return count

    async def audit_all(self, since_ns: int) -> int:
        """Bring in batches that were accepted since then, by the store's clock, and are listed nowhere."""
        count = await self.audit(since_ns)
        while self._audit is not None:
            count += await self.audit(since_ns)
        return count

    async def audit(self, since_ns: int = 0) -> int:
        """Bring in recent batches that are listed nowhere; ``AUDIT_PAGES`` of all manifests, from where it left off."""
        wanted = self.heard.wanting()
        if self._audit is None or (wanted and not self._audit.wanted):
            self._audit = _Audit(wanted)
        audit, after, found = self._audit, self._audit.after, list[_Found]()
        oldest_ns, pages, more = max(since_ns, self.live.horizon_ns()), 0, False
        async for page in self.store.list(layout.ACCEPTED, after=after):
            pages += 1
            for entry in page.entries:
                after, identity = entry.key, layout.identity_in(entry.key)
                recent = identity is not None and entry.modified_ns >= oldest_ns
                if recent and identity is not None and not self.live.knows(identity.manifest_id):
                    found.append((entry.modified_ns, entry.key))
            more = pages >= AUDIT_PAGES and len(page.entries) > 0
            if more:
                break
        count = await self._bring(found)
        if more:
            audit.after = after
        else:
            self._audit, self.audited = None, True
            self.heard.covered(audit.wanted)
        return count

    async def run(self, interval_s: float, *, on_error: Callable[[HoldfastError], None] | None = None) -> None:
        """Follow until cancelled. A store that takes long is asked less often."""
        rounds = 0
        while True:
            began = self.clock.monotonic_ns()
            try:
                await self.poll()
                if rounds % AUDIT_EVERY == 0 or not self.audited or self.heard.wanting():
                    await self.audit()
                rounds += 1
            except HoldfastError as error:
                if on_error is not None:
                    on_error(error)
                _log.warning("following goes on in %g s: %s", interval_s, error)
            took = (self.clock.monotonic_ns() - began) / 1_000_000_000
            await asyncio.sleep(max(interval_s, 2 * took))

    async def _round(self, since_ns: int, written_ns: int = 0) -> int:
        """Of batches accepted since then; of gatherings, those that were written since then."""
        now = self.clock.wall_ns()
        hours = {layout.hour_path(at) for at in range(since_ns, now + SKEW_NS, _HOUR_NS)} | {
            layout.hour_path(since_ns),
            layout.hour_path(now + SKEW_NS),
        }
        oldest = layout.hour_path(now - self.live.window_ns - SKEW_NS)
        self._seen = {hour: seen for hour, seen in self._seen.items() if hour >= oldest or hour in hours}
        found: list[_Found] = []
        for hour in sorted(hours):
            gathered = f"{layout.GATHERINGS}{hour}"
            await self._new(gathered, f"{gathered}{written_ns:020d}" if written_ns > 0 else None, found)
            await self._new(f"{layout.ACCEPTED_BY_TIME}{hour}", None, found)
        return await self._bring(found)

    async def _new(self, folder: str, after: str | None, found: list[_Found]) -> None:
        """What was not looked at before."""
        seen = self._seen.setdefault(_hour(folder), set())
        async for page in self.store.list(folder, after=after):
            for entry in page.entries:
                ident = _id(entry.key)
                if self.live.knows(ident):
                    seen.add(_short(ident))
                elif _short(ident) not in seen:
                    found.append((entry.modified_ns, entry.key))

    async def _bring(self, found: list[_Found]) -> int:
        """Fetch the newest first, as much as fits, and add the oldest first."""
        found.sort(key=lambda each: each[0], reverse=True)
        keys = [where for _, where in found if isinstance(where, str)]
        fetched: list[tuple[AcceptedManifest, Batch]] = []
        # By what batches take once they are unpacked: a frame of a hundred bytes may be a million records.
        room = self.live.max_bytes
        while found and room > 0:
            parts = await map_bounded(found[:EXPANDED], self._expand, limit=AT_ONCE)
            found[:EXPANDED] = []
            waiting = [each for part in parts for each in part]
            looked = 0
            async with aclosing(stream_bounded(waiting, self._fetch, limit=AT_ONCE)) as results:
                async for result in results:
                    looked += 1
                    if result is not None:
                        fetched.append(result)
                        room -= size_of(result[1])
                    if room <= 0:
                        break
            if room <= 0:
                found[:0] = waiting[looked:]
        for written_ns, _ in found:
            if written_ns >= self.live.horizon_ns():
                self.live.lacks(written_ns)
        for key in keys:
            self._note(key)
        fetched.sort(key=lambda each: each[0].accepted_at_unix_ns)
        return sum(self.live.add(manifest, batch) for manifest, batch in fetched)

    async def _expand(self, found: _Found) -> list[_Found]:
        """The batches of a gathering, the newest first; whatever else was found, as it is."""
        _, key = found
        if not isinstance(key, str) or not key.startswith(layout.GATHERINGS):
            return [found]
        try:
            manifests = manifests_in(await self.store.get(key))
        except NotFound:
            return []  # removed, once each of its batches had a reference of its own
        except (Corrupt, Incompatible) as error:
            self.failed(key, error)
            return []
        manifests.sort(key=lambda each: each.accepted_at_unix_ns, reverse=True)
        return [(each.accepted_at_unix_ns, each) for each in manifests if not self._passes(each)]

    async def _fetch(self, found: _Found) -> tuple[AcceptedManifest, Batch] | None:
        _, where = found
        try:
            manifest = where if isinstance(where, AcceptedManifest) else await self._manifest(where)
            if self._passes(manifest):
                return None
            body = await self._body(manifest)
            if body is None:
                return None
            async with self._decoders:
                return manifest, await blocking(self._decode, manifest, body)
        except (NotFound, Invalid, Corrupt, Incompatible) as error:
            self.failed(where if isinstance(where, str) else where.key, error)
            return None

    async def _manifest(self, key: str) -> AcceptedManifest:
        """The manifest under this key, or the one that a reference by time holds."""
        found = await self.store.get(key)
        return manifests_in(found)[0] if key.startswith(layout.ACCEPTED_BY_TIME) else AcceptedManifest.read(found)

    def _passes(self, manifest: AcceptedManifest) -> bool:
        """Whether it is too old, or here already."""
        return manifest.accepted_at_unix_ns < self.live.horizon_ns() or self.live.knows(manifest.identity.manifest_id)

    def failed(self, key: str, error: HoldfastError) -> None:
        """What was accepted under this key, or by this name, cannot be shown."""
        self.problems += 1
        _log.error("%s: not in live state: %s", key, error)

    async def _body(self, manifest: AcceptedManifest) -> bytes | None:
        """None if the bytes were let go: that is no problem, and nothing to be shown."""
        try:
            return (await self.store.get(manifest.raw_blob_key)).body
        except NotFound:
            if await find_expired(self.store, manifest.identity) is None:
                raise
            _log.info("%s: not in live state: its bytes were expired", manifest.key)
            return None

    def _decode(self, manifest: AcceptedManifest, body: bytes) -> Batch:
        if hashlib.sha256(body).hexdigest() != manifest.frame_sha256:
            raise Corrupt(f"{manifest.raw_blob_key}: its bytes do not have the hash that {manifest.key} names")
        return decode(body, self.limits)

    def _note(self, key: str) -> None:
        if key.startswith((layout.ACCEPTED_BY_TIME, layout.GATHERINGS)):
            self._seen.setdefault(_hour(key), set()).add(_short(_id(key)))


def _hour(key: str) -> str:
    """The part of a key by time that names its hour."""
    return "/".join(key.split("/")[2:4]) + "/"


def _id(key: str) -> str:
    """Of the manifest or the gathering."""
    gathering = layout.gathering_in(key)
    return gathering.id if gathering is not None else key.rpartition("/")[2].removesuffix(".json")


def _short(ident: str) -> bytes:
    return ident[:24].encode()
