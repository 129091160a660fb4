"""Blobs that no manifest names, and how they are removed while collectors are active.

A collector reads nothing after it wrote a manifest. So a process that looks for manifests and then deletes a blob can
always be overtaken by a manifest whose writer was paused, or whose request was late. No age is great enough, and no
marker helps against a collector that does not look for it, such as a plain one of the specification.

But the bytes of a frame contain its identity. So only one manifest could ever name a blob, and once that manifest
exists it never changes. Therefore the identity is closed first, by creating that manifest, and a blob is deleted only
if it can never become accepted any more.

    identity free           adopt: create the manifest, as the collector would have that stored these valid bytes
    accepted, same bytes    nothing to do: it is no orphan
    accepted, other bytes   it lost a conflict: record that, as its collector should have
    ... recorded            evidence: kept as long as the record exists
    ... resolved for good   remove the record, then the bytes; a DELETE that is late or repeated does no harm, because
                            the decision is final and stays
    accepted, and expired   the bytes had expired, and were sent again: evidence while a conflict that is not resolved
                            names them, else remove the records of its conflicts, then the bytes
    no identity in it       keep and report: bytes of a newer client, or no frame

``look`` judges and writes nothing; ``treat`` carries out the verdict. Ages and audits only save work. Every step is a
conditional create or follows from facts that never change, so any number of keepers may run, at any speed.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import TOTAL, Existing, Submission, inspect_frame
from holdfast.telemetry.accept.collector import find_accepted
from holdfast.telemetry.accept.conflicts import conflicts_of, find_conflict, record_conflict
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.frame import Header
from holdfast.telemetry.identity import BatchIdentity

MayGo = Callable[[BatchIdentity, str], Awaitable[bool]]
"""Whether the conflict over bytes of this hash is resolved for good, so that they may be deleted."""
Held = Callable[[BatchIdentity], bool]
"""Whether this agent and boot are in quarantine: then none of their batches is adopted."""


class Fate(Enum):
    """What to do with a blob."""

    GONE = "the blob does not exist"
    FOREIGN = "its bytes are no frame that this client can read, or not those of its name"
    REFERENCED = "the manifest of its identity names it"
    HELD = "its agent and boot are in quarantine"
    ADOPT = "no collector has accepted its identity"
    RECORD = "other bytes were accepted, and the conflict is not recorded"
    EVIDENCE = "it is part of a conflict that is not resolved"
    REMOVE = "it lost a conflict that is resolved"
    EXPIRED = "its batch was expired, and sent again since"


GOES = frozenset((Fate.REMOVE, Fate.EXPIRED))
"""Blobs that are deleted: no manifest can ever name them, or their batch has expired."""


def fate(
    sha256: str,
    head: Header | None,
    accepted: AcceptedManifest | None,
    conflict: ConflictManifest | None,
    *,
    may_go: bool,
    held: bool,
    expired: bool = False,
) -> Fate:
    """The rule above. ``accepted`` and ``conflict`` are the objects of the identity in ``head``."""
    if head is None:
        return Fate.FOREIGN
    match Existing.of(accepted, sha256):
        case Existing.NONE:
            return Fate.HELD if held else Fate.ADOPT
        case Existing.OTHER if may_go:
            return Fate.REMOVE
        case Existing.OTHER:
            return Fate.RECORD if conflict is None else Fate.EVIDENCE
    return Fate.EXPIRED if expired else Fate.REFERENCED


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict about a blob, with the objects that it is based on."""

    blob_key: str
    sha256: str
    fate: Fate
    size: int = 0
    head: Header | None = None
    body: bytes = field(default=b"", repr=False)
    accepted: AcceptedManifest | None = None
    records: tuple[ConflictManifest, ...] = ()
    """Records of conflicts that name these bytes; removed before them."""


async def _never(*_: object) -> bool:
    return False


class OrphanKeeper:
    """Treats blobs one by one, for any process that may create manifests, at any time."""

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        *,
        collector_id: str,
        authority_id: str | None = None,
        may_go: MayGo = _never,
        held: Held = lambda _: False,
    ) -> None:
        self._store = store
        self._ambient = ambient
        self._collector_id = collector_id
        self._authority_id = authority_id
        self._may_go = may_go
        self._held = held

    async def treat(self, blob_key: str) -> Fate:
        """Judge one blob and carry out the verdict. A blob that a collector is about to accept is not harmed."""
        judged = await self.look(blob_key)
        await self.settle(judged)
        if judged.fate in GOES:
            await self._store.delete_many([each.key for each in judged.records])
            await self._store.delete(blob_key)
        return judged.fate

    async def look(self, blob_key: str) -> Judged:
        """The verdict about a blob. Writes nothing."""
        sha256 = layout.blob_hash(blob_key)
        if sha256 is None:
            raise Invalid(f"{blob_key} is not the key of a raw blob", remedy=f"treat keys under {layout.BLOBS}")
        try:
            body = (await self._store.get(blob_key)).body
        except NotFound:
            return Judged(blob_key, sha256, Fate.GONE)
        head = inspect_frame(body) if hashlib.sha256(body).hexdigest() == sha256 else None
        if head is None:
            return Judged(blob_key, sha256, Fate.FOREIGN, len(body))
        accepted = await find_accepted(self._store, head.identity)
        conflict = await self._conflict(accepted, sha256)
        same = accepted is not None and accepted.frame_sha256 == sha256
        may_go = accepted is not None and not same and await self._may_go(head.identity, sha256)
        expired = same and await find_expired(self._store, head.identity) is not None
        held = self._held(head.identity)
        verdict = fate(sha256, head, accepted, conflict, may_go=may_go, held=held, expired=expired)
        records: tuple[ConflictManifest, ...] = () if conflict is None else (conflict,)
        if verdict is Fate.EXPIRED:
            records = tuple(await conflicts_of(self._store, head.identity))
            resolved = [await self._may_go(each.identity, each.submitted_frame_sha256) for each in records]
            verdict = verdict if all(resolved) else Fate.EVIDENCE
        return Judged(blob_key, sha256, verdict, len(body), head, body, accepted, records)

    async def settle(self, judged: Judged) -> AcceptedManifest | None:
        """Close the identity of a judged blob, or record its conflict. Deletes nothing. Returns the manifest of the
        identity."""
        accepted = judged.accepted
        if judged.fate is Fate.ADOPT and judged.head is not None:
            return await self._adopt(judged.head, judged.body, judged.sha256)
        if judged.fate is Fate.RECORD and accepted is not None:
            await record_conflict(self._store, self._ambient, accepted, judged.sha256, collector_id=self._collector_id)
        return accepted

    async def _conflict(self, accepted: AcceptedManifest | None, sha256: str) -> ConflictManifest | None:
        if accepted is None or accepted.frame_sha256 == sha256:
            return None
        return await find_conflict(self._store, accepted.identity, sha256)

    async def _adopt(self, head: Header, body: bytes, sha256: str) -> AcceptedManifest | None:
        """Close the identity. If a collector is faster, its manifest counts, and the next look sees it."""
        found = Submission(head.identity, body, sha256, records={TOTAL: head.records})
        draft = found.manifest(
            accepted_at_unix_ns=self._ambient.clock.wall_ns(),
            collector_id=self._collector_id,
            authority_id=self._authority_id,
            write_id=self._ambient.ids.write_id(),
        )
        if isinstance(await self._store.put(draft.key, draft.encode(), CREATE), Lost):
            return await find_accepted(self._store, head.identity)
        return draft
