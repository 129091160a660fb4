"""Batches that others accepted, brought into live state: at start, and for a query collector all the time.

Found by the references by time (each holds its manifest), hour by hour; what a crash left without a reference is found
by ``audit``, which lists the manifests themselves. A batch costs one GET for its reference and one for its bytes; a
look costs one LIST per thousand batches of the hour. Reads alone, so any number of collectors may do it.

Errors: ``Unavailable`` ends a round, and the next one goes on. Bytes that are missing or are not what their manifest
says are counted in ``problems``, logged, and not asked for again.
"""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.aio import blocking, stream_bounded
from holdfast.base.clock import Clock
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.telemetry import logger
from holdfast.ingest import layout
from holdfast.ingest.expired import find_expired
from holdfast.ingest.frame import Batch, Limits, decode
from holdfast.ingest.live import Live, size_of
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.objects.store import Object, Store

AT_ONCE = 8
"""Reads under way: the path of acceptance has the better right to the connections."""
DECODERS = 2
"""Frames that are unpacked at a time."""
AUDIT_PAGES = 200
"""Of a thousand manifests each; beyond them an audit is not complete, and says so."""
AUDIT_EVERY = 300
"""Rounds between two audits."""
SKEW_NS = 600 * 1_000_000_000
"""How far the clocks of collectors may be apart for an hour to be looked at."""

_HOUR_NS = 3_600 * 1_000_000_000
_log = logger("ingest.follow")


@dataclass
class Follower:
    store: Store
    live: Live
    clock: Clock
    limits: Limits
    problems: int = 0
    followed_ns: int | None = None
    """When the last round ended that has seen everything."""
    audited: bool = False
    """Whether the last audit saw every manifest."""
    _decoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODERS))
    _seen: dict[str, set[bytes]] = field(default_factory=dict)
    """By hour, the first bytes of the manifest ids that need not be looked at again."""

    async def rebuild(self) -> int:
        """Bring in what the window holds, the newest first, until live state is full; how many batches."""
        return await self._round(self.clock.wall_ns() - self.live.window_ns)

    async def poll(self) -> int:
        """Bring in what has come since the last look."""
        began = self.clock.wall_ns()
        count = await self._round(began - SKEW_NS)
        self.followed_ns = began
        return count

    async def audit(self) -> int:
        """Bring in recent batches that no reference names. Lists all manifests, so it is done seldom."""
        horizon = self.live.horizon_ns()
        found: list[tuple[int, str]] = []
        pages = 0
        self.audited = False
        async for page in self.store.list(layout.ACCEPTED):
            pages += 1
            for entry in page.entries:
                identity = layout.identity_in(entry.key)
                recent = identity is not None and entry.modified_ns >= horizon
                if recent and identity is not None and not self.live.knows(identity.manifest_id):
                    found.append((entry.modified_ns, entry.key))
            if pages >= AUDIT_PAGES:
                _log.warning("an audit of more than %d manifests was not finished", AUDIT_PAGES * 1_000)
                break
        else:
            self.audited = True
        return await self._bring(found, self._manifest)

    async def run(self, interval_s: float, *, on_error: Callable[[HoldfastError], None] | None = None) -> None:
        """Follow until cancelled. A store that takes long is asked less often."""
        rounds = 0
        while True:
            began = self.clock.monotonic_ns()
            try:
                await self.poll()
                if rounds % AUDIT_EVERY == 0:
                    await self.audit()
                rounds += 1
            except HoldfastError as error:
                if on_error is not None:
                    on_error(error)
                _log.warning("following goes on in %g s: %s", interval_s, error)
            took = (self.clock.monotonic_ns() - began) / 1_000_000_000
            await asyncio.sleep(max(interval_s, 2 * took))

    async def _round(self, since_ns: int) -> int:
        now = self.clock.wall_ns()
        hours = {layout.hour_path(at) for at in range(since_ns, now + SKEW_NS, _HOUR_NS)} | {
            layout.hour_path(since_ns),
            layout.hour_path(now + SKEW_NS),
        }
        oldest = layout.hour_path(now - self.live.window_ns - SKEW_NS)
        self._seen = {hour: seen for hour, seen in self._seen.items() if hour >= oldest or hour in hours}
        found: list[tuple[int, str]] = []
        for hour in sorted(hours):
            seen = self._seen.setdefault(hour, set())
            async for page in self.store.list(f"{layout.ACCEPTED_BY_TIME}{hour}"):
                for entry in page.entries:
                    manifest_id = _manifest_id(entry.key)
                    if self.live.knows(manifest_id):
                        seen.add(_short(manifest_id))
                    elif _short(manifest_id) not in seen:
                        found.append((entry.modified_ns, entry.key))
        return await self._bring(found, self._reference)

    async def _bring(self, found: list[tuple[int, str]], read: Callable[[Object], AcceptedManifest]) -> int:
        """Fetch the newest first, as much as fits, and add the oldest first."""
        found.sort(reverse=True)
        fetched: list[tuple[AcceptedManifest, Batch]] = []
        # By what batches take once they are unpacked: a frame of a hundred bytes may be a million records.
        room = self.live.max_bytes
        keys = [key for _, key in found]
        looked = 0
        async with aclosing(stream_bounded(keys, lambda key: self._fetch(key, read), limit=AT_ONCE)) as results:
            async for result in results:
                looked += 1
                if result is not None:
                    fetched.append(result)
                    room -= size_of(result[1])
                if room <= 0:
                    break
        for modified_ns, _ in found[looked:]:
            if modified_ns >= self.live.horizon_ns():
                self.live.lacks(modified_ns)
        for key in keys:
            self._note(key)
        fetched.sort(key=lambda each: each[0].accepted_at_unix_ns)
        return sum(self.live.add(manifest, batch) for manifest, batch in fetched)

    async def _fetch(
        self, key: str, read: Callable[[Object], AcceptedManifest]
    ) -> tuple[AcceptedManifest, Batch] | None:
        try:
            manifest = read(await self.store.get(key))
            if manifest.accepted_at_unix_ns < self.live.horizon_ns() or self.live.knows(manifest.identity.manifest_id):
                return None
            body = await self._body(manifest)
            if body is None:
                return None
            async with self._decoders:
                return manifest, await blocking(self._decode, manifest, body)
        except (NotFound, Invalid, Corrupt, Incompatible) as error:
            self.problems += 1
            _log.error("%s: not in live state: %s", key, error)
            return None

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

    def _reference(self, found: Object) -> AcceptedManifest:
        """The manifest that a reference by time holds."""
        document = codec.decode(found.body, key=found.key)
        key, inner = document.get("accepted_manifest_key"), document.get("accepted_manifest")
        if not isinstance(key, str) or not isinstance(inner, dict):
            raise Corrupt(f"{found.key}: names no manifest")
        return AcceptedManifest.read(Object(key, codec.encode(inner), found.modified_ns, found.version))

    def _manifest(self, found: Object) -> AcceptedManifest:
        return AcceptedManifest.read(found)

    def _note(self, key: str) -> None:
        if key.startswith(layout.ACCEPTED_BY_TIME):
            hour = key.removeprefix(layout.ACCEPTED_BY_TIME).rpartition("/")[0] + "/"
            self._seen.setdefault(hour, set()).add(_short(_manifest_id(key)))


def _manifest_id(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")


def _short(manifest_id: str) -> bytes:
    return manifest_id[:24].encode()
