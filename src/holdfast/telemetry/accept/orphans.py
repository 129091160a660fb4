"""Blobs that no manifest names, and how they are removed while collectors are active.

A collector that writes a manifest reads nothing afterwards, so its blob cannot be taken away in time: a process that
audits manifests and then deletes can always be overtaken by a manifest whose writer was paused, or whose request was
late. No age is great enough, and no marker helps a collector that does not look (nor a plain one of the specification).

But a frame says who it is. Its bytes carry its identity, so one manifest alone could ever come to name a blob, and what
that manifest says is final once it exists. So nothing is deleted while it can still become accepted: the question is
closed first, by creating that manifest.

    identity free           adopt: create the manifest, as the collector would have that stored these validated bytes
    accepted, same bytes    nothing to do: it is no orphan
    accepted, other bytes   it lost a conflict, for ever: put that on record, as its collector should have
    ... on record           evidence: kept, as long as that record is there
    ... resolved for good   remove the record, then the bytes: a DELETE that is late or comes twice does no harm, for
                            the verdict is final, and the decision stays
    accepted, and expired   remove: its bytes were let go, and sent again since
    no identity in it       keep and report: bytes of a newer client, or of none

``look`` judges and changes nothing; ``treat`` does what follows. Ages and audits only save work. Every step is a
conditional create or follows from facts that never change, so a collector of garbage may be as late, as slow and as
many as it likes.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import FrameHead, Inspect, Standing, Submission, standing
from holdfast.telemetry.accept.collector import find_accepted
from holdfast.telemetry.accept.conflicts import find_conflict, record_conflict
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.identity import BatchIdentity

MayGo = Callable[[BatchIdentity, str], Awaitable[bool]]
"""Whether the conflict of bytes of this hash is resolved for good, and they are needed no more."""
Held = Callable[[BatchIdentity], bool]
"""Whether this agent and boot are in quarantine: then none of their batches is adopted."""


class Fate(Enum):
    """What is to be done with a blob."""

    GONE = "the blob is not there"
    FOREIGN = "its bytes are no frame that this client can read, or not those of its name"
    REFERENCED = "the manifest of its identity names it"
    HELD = "its agent and boot are in quarantine"
    ADOPT = "no collector has accepted its identity"
    RECORD = "other bytes were accepted, and the conflict is not recorded"
    EVIDENCE = "it is part of a conflict that is not resolved"
    REMOVE = "it lost a conflict that is resolved"
    EXPIRED = "its batch was expired, and sent again since"


GOES = frozenset((Fate.REMOVE, Fate.EXPIRED))
"""What is deleted: no manifest can come to name it, or the one that does says that its bytes are let go."""


def fate(
    sha256: str,
    head: FrameHead | None,
    accepted: AcceptedManifest | None,
    conflict: ConflictManifest | None,
    *,
    may_go: bool,
    held: bool,
    expired: bool = False,
) -> Fate:
    """The rule above. ``accepted`` and ``conflict`` are what stands under the identity in ``head``."""
    if head is None:
        return Fate.FOREIGN
    match standing(accepted, sha256):
        case Standing.FREE:
            return Fate.HELD if held else Fate.ADOPT
        case Standing.OTHER if may_go:
            return Fate.REMOVE
        case Standing.OTHER:
            return Fate.RECORD if conflict is None else Fate.EVIDENCE
    return Fate.EXPIRED if expired else Fate.REFERENCED


@dataclass(frozen=True, slots=True)
class Treated:
    """What was done, and the manifest that stands now."""

    fate: Fate
    accepted: AcceptedManifest | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict about a blob, with the objects that it is based on."""

    blob_key: str
    sha256: str
    fate: Fate
    size: int = 0
    head: FrameHead | None = None
    body: bytes = field(default=b"", repr=False)
    accepted: AcceptedManifest | None = None
    record: ConflictManifest | None = None
    """The key of the conflict that it lost; removed before the bytes."""


async def _never(*_: object) -> bool:
    return False


class OrphanKeeper:
    """Treats blobs one by one. It may be run by anybody who may create manifests, at any time."""

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        inspect: Inspect,
        *,
        collector_id: str,
        authority_id: str | None = None,
        may_go: MayGo = _never,
        held: Held = lambda _: False,
    ) -> None:
        self._store = store
        self._ambient = ambient
        self._inspect = inspect
        self._collector_id = collector_id
        self._authority_id = authority_id
        self._may_go = may_go
        self._held = held

    async def treat(self, blob_key: str) -> Treated:
        """Judge one blob and carry out the verdict. A blob that a collector is about to accept is not harmed."""
        judged = await self.look(blob_key)
        treated = await self.settle(judged)
        if judged.fate in GOES:
            if judged.record is not None:
                await self._store.delete(judged.record.key)
            await self._store.delete(blob_key)
        return treated

    async def look(self, blob_key: str) -> Judged:
        """The verdict about a blob. Writes nothing."""
        sha256 = layout.blob_hash(blob_key)
        if sha256 is None:
            raise Invalid(f"{blob_key} is not the key of a raw blob", remedy=f"treat keys under {layout.BLOBS}")
        try:
            body = (await self._store.get(blob_key)).body
        except NotFound:
            return Judged(blob_key, sha256, Fate.GONE)
        head = self._inspect(body) if hashlib.sha256(body).hexdigest() == sha256 else None
        if head is None:
            return Judged(blob_key, sha256, Fate.FOREIGN, len(body))
        accepted = await find_accepted(self._store, head.identity)
        conflict = await self._conflict(accepted, sha256)
        same = accepted is not None and accepted.frame_sha256 == sha256
        may_go = accepted is not None and not same and await self._may_go(head.identity, sha256)
        expired = same and await find_expired(self._store, head.identity) is not None
        held = self._held(head.identity)
        verdict = fate(sha256, head, accepted, conflict, may_go=may_go, held=held, expired=expired)
        return Judged(blob_key, sha256, verdict, len(body), head, body, accepted, conflict)

    async def settle(self, judged: Judged) -> Treated:
        """Close the identity of what was judged, or put its conflict on record. Nothing is deleted."""
        accepted = judged.accepted
        if judged.fate is Fate.ADOPT and judged.head is not None:
            accepted = await self._adopt(judged.head, judged.body, judged.sha256)
        elif judged.fate is Fate.RECORD and accepted is not None:
            await record_conflict(self._store, self._ambient, accepted, judged.sha256, collector_id=self._collector_id)
        return Treated(judged.fate, accepted)

    async def _conflict(self, accepted: AcceptedManifest | None, sha256: str) -> ConflictManifest | None:
        if accepted is None or accepted.frame_sha256 == sha256:
            return None
        return await find_conflict(self._store, accepted.identity, sha256)

    async def _adopt(self, head: FrameHead, body: bytes, sha256: str) -> AcceptedManifest | None:
        """Close the identity. If a collector is faster, its manifest stands, and the next look sees it."""
        found = Submission(head.identity, body, sha256, frame_version=head.frame_version, records=head.records)
        draft = found.manifest(
            accepted_at_unix_ns=self._ambient.clock.wall_ns(),
            collector_id=self._collector_id,
            authority_id=self._authority_id,
            write_id=self._ambient.ids.write_id(),
        )
        if isinstance(await self._store.put(draft.key, draft.encode(), CREATE), Lost):
            return await find_accepted(self._store, head.identity)
        return draft
