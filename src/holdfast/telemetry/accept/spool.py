"""The spool: batches that one collector has accepted on its own disk, until they are in the object store.

    pending/v2/{agent}.{boot}.{start}-{end}.lmbatch                    accepted here, not landed; the frame's bytes
    conflicts/v1/agent={hex}/boot={hex}/{start}-{end}/{sha256}.lmbatch other bytes, to be put on record in the store
    spool.json                                                         the spool's id
    reserve                                                            room for notes when the disk is full
    trial                                                              for a moment: whether there is room

and beside these objects, in a folder of their own, ``notes`` of what has landed.

Creating the pending file is the acceptance: it is forced to disk before anybody is told. All are in one folder, which
stays, so that it takes two syncs one after the other (of its bytes; of its name and the folder, of which the latter
serves all that come at a time). When it was made is when the batch was accepted, for everybody who is told. A batch
lands first, is listed there by time, then there is a note of it, and only then its pending file goes; who accepts
creates the pending file first and looks for the note after. So one of the two always shows that the identity is taken,
across restarts too, and no lock is needed; and who reads pending files first and the store's lists after misses none. A
crash in between leaves a pending file that lands once more, which changes nothing. What is being accepted just now does
not land: its sender would be told of a duplicate, and nothing that follows from an acceptance would happen.

What has landed can go only after a note of it was written, which takes room on a disk that may have none. So some is
kept in reserve: notes get it when nothing else is left, and until it is back nothing more is accepted, which would only
take it away from them.

The store given must answer for certain (the local one does): there is no wire here, and nothing to settle.
"""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.base import codec
from holdfast.base.errors import Ambiguous, Denied, Incompatible, Invalid, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.local import LocalStore
from holdfast.objects.store import CREATE, OVERWRITE, Object, Store, Written
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.notes import Notes
from holdfast.telemetry.folder import DiskFolder, locked, named_folder
from holdfast.telemetry.identity import BatchIdentity

PENDING = "pending/v2/"
STAYS = f"{PENDING}stays"
"""Keeps the folder there when no batch waits: to make it again takes a sync for each folder above."""
CONFLICTS = "conflicts/v1/"
ABOUT = "spool.json"
RESERVE = "reserve"
TRIAL = "trial"
TRIAL_BYTES = 4 << 10
BALLAST = hashlib.shake_256(b"no file system makes this any shorter").digest(256 << 10)
FORMAT = "holdfast.spool"
VERSION = 2
FOLDER = "objects"
NOTES = "notes"
LOCK = "spool.lock"

_PENDING = re.compile(re.escape(PENDING) + r"([0-9a-f]+)\.([0-9a-f]+)\.(\d{20})-(\d{20})\.lmbatch")


@dataclass(frozen=True, slots=True)
class Spooled:
    """A batch that waits to land."""

    identity: BatchIdentity
    frame_bytes: int
    accepted_at_unix_ns: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The identity is taken, by bytes of this hash; ``landed`` is what stands in the object store."""

    frame_sha256: str
    accepted_at_unix_ns: int
    new: bool = False
    """It was free until now."""
    landed: AcceptedManifest | None = None
    body: bytes | None = None
    """The bytes, while they wait here."""


class Spool:
    def __init__(self, store: Store, notes: Notes) -> None:
        """``load`` comes first."""
        self._store = store
        self._notes = notes
        self._reserved = False
        """The reserve is there."""
        self._short = False
        """It is in use, or could not be had."""
        self._making_room = asyncio.Lock()
        self._refused_bytes = 0
        """Of the newest batch, if the disk did not take it."""
        self._taking: Counter[BatchIdentity] = Counter()
        """What is being accepted now."""
        self._count = 0
        self._changes = 0
        """How often something came or went."""

    async def load(self) -> None:
        await self._store.put(STAYS, b"", CREATE)
        await self._notes.load()
        async for _ in self.pending():
            pass

    def __len__(self) -> int:
        """How many batches wait to land. A write that failed half-way is counted when they are next listed."""
        return self._count

    async def spool_id(self, ambient: Ambient) -> str:
        """The id under which an authority knows this spool; drawn when it is first asked for."""
        drawn = codec.stamp(
            {"spool_id": ambient.ids.unique()},
            format_name=FORMAT,
            version=VERSION,
            write_id=ambient.ids.write_id(),
        )
        await self._store.put(ABOUT, codec.encode(drawn), CREATE)
        document = codec.decode((await self._store.get(ABOUT)).body, key=ABOUT)
        version = codec.expect(document, format_name=FORMAT, newest=VERSION, key=ABOUT)
        if version < VERSION:
            raise Incompatible(
                f"the spool is of version {version}, and its batches would not be found",
                remedy="let the version that made it land them, and name another folder",
            )
        return str(document["spool_id"])

    async def take(self, submission: Submission) -> Taken:
        """Take the batch in, durably, unless its identity was taken before."""
        self._check_room()
        self._taking[submission.identity] += 1
        try:
            taken = await self._take(submission)
            self._refused_bytes = 0
            return taken
        except (Unavailable, Ambiguous, Denied):
            self._refused_bytes = len(submission.body)
            raise
        finally:
            self._taking[submission.identity] -= 1
            if not self._taking[submission.identity]:
                del self._taking[submission.identity]

    async def _take(self, submission: Submission) -> Taken:
        key = pending_key(submission.identity)
        taken = await self._landed(submission.identity)
        while taken is None:
            created = isinstance(await self._store.put(key, submission.body, CREATE), Written)
            # The look before may be out of date: it only spares files that would go again at once.
            taken = await self._landed(submission.identity)
            if taken is None:
                self._changed(int(created))
                found = await self._store.find(key)
                if found is not None and created:
                    return Taken(submission.frame_sha256, found.modified_ns, new=True)
                if found is not None:
                    taken = Taken(hashlib.sha256(found.body).hexdigest(), found.modified_ns, body=found.body)
            elif created:
                await self._keep_conflict(submission, taken.frame_sha256)
                await self._store.delete(key)
        await self._keep_conflict(submission, taken.frame_sha256)
        return taken

    async def read(self, identity: BatchIdentity) -> bytes:
        """The bytes of a batch that has not landed yet; ``NotFound`` if it has, or never was here."""
        return (await self._store.get(pending_key(identity))).body

    async def waiting(self, identity: BatchIdentity) -> Object | None:
        return await self._store.find(pending_key(identity))

    async def pending(self) -> AsyncIterator[Spooled]:
        """What was accepted and has not landed, by agent, boot and sequence number."""
        changes, count = self._changes, 0
        async for page in self._store.list(PENDING):
            for entry in page.entries:
                identity = _pending_in(entry.key)
                if identity is not None:
                    count += 1
                    yield Spooled(identity, entry.size, entry.modified_ns)
        if changes == self._changes and not self._taking:
            self._count = count

    async def to_land(self) -> AsyncIterator[Spooled]:
        """The same, without what is being accepted now."""
        async for spooled in self.pending():
            if spooled.identity not in self._taking:
                yield spooled

    async def conflicts(self) -> AsyncIterator[tuple[BatchIdentity, bytes]]:
        """Bytes that were refused here, and are to be put on record. Not before the batch they conflict with landed."""
        async for key in self._store.keys(CONFLICTS):
            identity = layout.identity_in(key)
            if identity is not None and await self._landed(identity) is not None:
                yield identity, (await self._store.get(key)).body

    async def have_landed(self, manifests: Collection[AcceptedManifest]) -> None:
        """These stand in the object store. One may be that of other bytes, with the conflict on record there. One that
        could not leave the disk the last time has its note."""
        fresh = [each for each in manifests if not await self._noted(each)]
        try:
            await self._notes.add(fresh)
        except Unavailable:
            await self._make_room()
            await self._notes.add(fresh)
        await self._store.delete_many([pending_key(manifest.identity) for manifest in manifests])
        self._changed(-len(manifests))

    async def conflict_landed(self, identity: BatchIdentity, sha256: str) -> None:
        await self._store.delete(_conflict(identity, sha256))

    async def forget(self, before_ns: int) -> int:
        """Remove notes of what landed before then. A duplicate that comes later still is found out when it lands. A
        note stays while bytes wait that conflict with what it tells of."""
        return await self._notes.forget(before_ns, await self._needed())

    async def keep_reserve(self) -> None:
        """See that there is room for notes, while all is well. Where notes alone take it up, the older half goes: the
        store knows what they say."""
        if self._reserved and not self._short:
            return
        try:
            await self._store.put(RESERVE, BALLAST, CREATE)
        except Unavailable:
            self._short = True
            if not [one async for one in self.pending()]:
                await self._notes.shed(await self._needed())
            return
        self._reserved, self._short = True, False

    async def try_to_write(self) -> None:
        """Whether batches can be taken in: as much is written as the newest one that was refused, and goes again."""
        self._check_room()
        size = max(TRIAL_BYTES, self._refused_bytes)
        await self._store.put(TRIAL, (BALLAST * (size // len(BALLAST) + 1))[:size], OVERWRITE)
        await self._store.delete(TRIAL)

    def _changed(self, by: int) -> None:
        self._changes += by != 0
        self._count = max(0, self._count + by)

    def _check_room(self) -> None:
        if self._short:
            raise Unavailable("the disk of the spool is full, and what waits on it has to land first")

    async def _needed(self) -> list[BatchIdentity]:
        found = {layout.identity_in(key) async for key in self._store.keys(CONFLICTS)}
        return sorted(identity for identity in found if identity is not None)

    async def _make_room(self) -> None:
        async with self._making_room:
            if not self._short:
                self._reserved, self._short = False, True
                await self._store.delete(RESERVE)

    async def _landed(self, identity: BatchIdentity) -> Taken | None:
        manifest = await self._notes.find(identity)
        return None if manifest is None else Taken(manifest.frame_sha256, manifest.accepted_at_unix_ns, landed=manifest)

    async def _noted(self, manifest: AcceptedManifest) -> bool:
        found = await self._landed(manifest.identity)
        return found is not None and found.frame_sha256 == manifest.frame_sha256

    async def _keep_conflict(self, submission: Submission, accepted_sha256: str) -> None:
        if submission.frame_sha256 != accepted_sha256:
            await self._store.put(_conflict(submission.identity, submission.frame_sha256), submission.body, CREATE)


@asynccontextmanager
async def open_spool(folder: Path, ambient: Ambient) -> AsyncIterator[Spool]:
    """The spool in ``folder``, for this process alone."""
    with _held(folder):
        notes = Notes(DiskFolder(folder / NOTES), ambient.clock)
        spool = Spool(LocalStore(folder / FOLDER, clock=ambient.clock), notes)
        await spool.load()
        yield spool


def holds_spool(folder: Path) -> bool:
    """Whether there is one already. Makes nothing."""
    with named_folder("--spool", folder):
        try:
            return (folder / FOLDER / ABOUT).stat().st_size > 0
        except FileNotFoundError:
            return False


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    with named_folder("--spool", folder):
        (folder / NOTES).mkdir(parents=True, exist_ok=True)
    busy = Refused(
        f"{folder}: another collector uses this spool",
        remedy="end it first: with local_spool a store has one collector; several need a store of s3_manifest",
    )
    with locked("--spool", folder / LOCK, busy):
        yield


def pending_key(identity: BatchIdentity) -> str:
    names = f"{identity.agent_id.encode().hex()}.{identity.boot_id.encode().hex()}"
    return f"{PENDING}{names}.{identity.seq_start:020d}-{identity.seq_end:020d}.lmbatch"


def _pending_in(key: str) -> BatchIdentity | None:
    """The batch whose key this is; None if it is no batch's."""
    found = _PENDING.fullmatch(key)
    if found is None:
        return None
    agent, boot, start, end = found.groups()
    try:
        return BatchIdentity(bytes.fromhex(agent).decode(), bytes.fromhex(boot).decode(), int(start), int(end))
    except (ValueError, Invalid):
        return None


def _conflict(identity: BatchIdentity, sha256: str) -> str:
    return f"{CONFLICTS}{layout.identity_path(identity)}/{sha256}.lmbatch"
