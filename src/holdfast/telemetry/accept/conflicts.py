"""Conflicts of identity: on record, what operators decide about them, and agents that collectors refuse.

Two frames claimed one identity, and one of them was accepted. The **record** of that is created once per identity and
submitted hash, so its time is that of the first sight, also when another collector sees the conflict again. The
submitted bytes are in the store before the record that names them.

A **decision** says who, when and why, in one register per conflict beside its record. *Existing is authoritative*: the
accepted batch stands, the other may be dropped by the agent that parked it; that is final, and garbage collection
removes the record and then the bytes. *Quarantine identity*: the agent and boot are held until an operator has looked
into it; the other decision may follow.

A **hold** makes every collector refuse an agent and boot, by name, until it is lifted. ``meta/ingest-holds.json`` is
one register with every hold, lifted ones too. Collectors read it every ``ingest.holds_refresh_ms``, with a condition,
so a hold takes effect within that time everywhere and costs no request on the path of a batch. What arrives before is
accepted as ever; a hold stops an agent, it does not undo.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Denied, HoldfastError, Incompatible, Invalid, NotFound, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.register import UNCHANGED, Plain, Register, Unchanged
from holdfast.objects.store import CREATE, Lost, NotModified, Object, Store, Version
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.identity import BatchIdentity

RESOLUTION_FORMAT = "holdfast.conflict_resolution"
HOLDS_FORMAT = "holdfast.ingest_holds"
REASON = "identity_quarantined"
SHORTEST = 6
"""Characters of a hash by which people name a conflict."""

_log = logger("ingest")


async def record_conflict(
    store: Store, ambient: Ambient, accepted: AcceptedManifest, submitted_sha256: str, *, collector_id: str
) -> ConflictManifest:
    """Record a conflict; returns the record, which may have existed before."""
    ours = ConflictManifest(
        identity=accepted.identity,
        accepted_manifest_key=accepted.key,
        accepted_raw_blob_key=accepted.raw_blob_key,
        accepted_frame_sha256=accepted.frame_sha256,
        submitted_raw_blob_key=layout.blob_key(submitted_sha256),
        submitted_frame_sha256=submitted_sha256,
        observed_at_unix_ns=ambient.clock.wall_ns(),
        collector_id=collector_id,
        write_id=ambient.ids.write_id(),
    )
    outcome = await store.put(ours.key, ours.encode(), CREATE)
    if not isinstance(outcome, Lost):
        return ours
    found = outcome.current or await store.find(ours.key)
    if found is None:
        raise Unavailable(f"{ours.key}: was there and is gone: it was resolved for good, and removed")
    return ConflictManifest.read(found)


async def find_conflict(store: Store, identity: BatchIdentity, submitted_sha256: str) -> ConflictManifest | None:
    found = await store.find(layout.conflict_key(identity, submitted_sha256))
    return None if found is None else ConflictManifest.read(found)


async def conflicts_of(store: Store, identity: BatchIdentity) -> list[ConflictManifest]:
    """Every conflict over this identity. ``Corrupt`` or ``Incompatible`` if one cannot be read."""
    keys = [key async for key in store.keys(layout.conflict_folder(identity))]
    return [ConflictManifest.read(await store.get(key)) for key in keys]


@dataclass(frozen=True, slots=True)
class UnreadableConflict:
    """A record of a conflict that cannot be read; its key still names the identity and the hash."""

    key: str
    identity: BatchIdentity
    why: str

    @property
    def submitted_frame_sha256(self) -> str:
        return self.key.rpartition("/")[2].removesuffix(".json")

    def document(self) -> Document:
        return {
            "agent_id": self.identity.agent_id,
            "boot_id": self.identity.boot_id,
            "seq_start": self.identity.seq_start,
            "seq_end": self.identity.seq_end,
            "submitted_frame_sha256": self.submitted_frame_sha256,
            "corrupt": self.why,
        }


async def conflicts(
    store: Store, *, agent_id: str | None = None
) -> AsyncIterator[ConflictManifest | UnreadableConflict]:
    """Every conflict on record, of one agent or of all. One that cannot be read hides no other."""
    prefix = layout.CONFLICTS if agent_id is None else f"{layout.CONFLICTS}agent={agent_id.encode().hex()}/"
    async for key in store.keys(prefix):
        identity = layout.identity_in(key)
        if identity is None:
            continue
        try:
            yield ConflictManifest.read(await store.get(key))
        except (Corrupt, Incompatible) as error:
            yield UnreadableConflict(key, identity, str(error))


class Resolution(StrEnum):
    EXISTING_IS_AUTHORITATIVE = "existing_is_authoritative"
    QUARANTINE_IDENTITY = "quarantine_identity"


@dataclass(frozen=True, slots=True)
class Decision:
    resolution: Resolution
    by: str
    at: str
    why: str

    def document(self) -> dict[str, str]:
        return {"resolution": self.resolution.value, "by": self.by, "at": self.at, "why": self.why}


class Resolutions:
    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient

    async def of(self, identity: BatchIdentity, submitted_sha256: str) -> tuple[Decision, ...]:
        """All decisions about a conflict, the latest last."""
        found = await self._register(identity, submitted_sha256).read()
        return () if found is None else _decisions(found.value)

    async def decide(
        self, identity: BatchIdentity, submitted_sha256: str, resolution: Resolution, *, by: str, why: str
    ) -> tuple[Decision, ...]:
        """Put a decision on record. The same one again changes nothing; after the final one there is no other."""
        for what, text in (("by whom", by), ("why", why)):
            if not text.strip():
                raise Invalid(f"a resolution says {what}", remedy="give --by and --why")
        decision = Decision(resolution, by, iso(self._ambient.clock.wall_ns()), why)

        def change(current: object) -> list[dict[str, str]] | Unchanged:
            before = [] if current is None else [each.document() for each in _decisions(current)]
            if before and before[-1]["resolution"] == resolution.value:
                return UNCHANGED
            if before and before[-1]["resolution"] == Resolution.EXISTING_IS_AUTHORITATIVE:
                raise Refused(
                    f"the conflict over {identity} was resolved by {before[-1]['by']} at {before[-1]['at']}: what was"
                    " accepted is authoritative",
                    remedy="that is final: the agent may have dropped its batch since",
                )
            return [*before, decision.document()]

        register = self._register(identity, submitted_sha256)
        return _decisions((await register.edit(f"decide {self._ambient.ids.attempt()}", change)).value)

    async def may_go(self, identity: BatchIdentity, submitted_sha256: str) -> bool:
        """Whether the bytes that lost a conflict are needed no more (for ``orphans``)."""
        return is_final(await self.of(identity, submitted_sha256))

    def _register(self, identity: BatchIdentity, submitted_sha256: str) -> "Register[object]":
        return Register(
            self._store, layout.resolution_key(identity, submitted_sha256), Plain(RESOLUTION_FORMAT), self._ambient
        )


def is_final(decisions: tuple[Decision, ...]) -> bool:
    return bool(decisions) and decisions[-1].resolution is Resolution.EXISTING_IS_AUTHORITATIVE


def _decisions(value: object) -> tuple[Decision, ...]:
    if not isinstance(value, list):
        raise Corrupt(f"{type(value).__name__} is no list of decisions about a conflict")
    try:
        return tuple(
            Decision(Resolution(row["resolution"]), *(str(row[name]) for name in ("by", "at", "why"))) for row in value
        )
    except codec.MALFORMED as error:
        raise Corrupt(f"a decision about a conflict cannot be read ({error!r})") from error


async def find_by_hash(store: Store, prefix: str) -> ConflictManifest:
    """The conflict whose submitted hash begins like this. Reads names, and then one record."""
    keys = [key async for key in keys_by_hash(store, prefix)]
    if not keys:
        raise NotFound(f"no conflict on record has submitted bytes {prefix}", remedy="see `holdfast conflicts list`")
    if len(keys) > 1:
        raise Invalid(f"{len(keys)} conflicts begin with {prefix}", remedy="give more of the hash")
    return ConflictManifest.read(await store.get(keys[0]))


async def keys_by_hash(store: Store, prefix: str) -> AsyncIterator[str]:
    if len(prefix) < SHORTEST:
        raise Invalid(f"{prefix!r} is too short to name a conflict", remedy=f"give {SHORTEST} characters or more")
    async for key in store.keys(layout.CONFLICTS):
        if key.rpartition("/")[2].startswith(prefix.lower()):
            yield key


class IdentityQuarantined(Denied):
    """An operator holds this agent and boot. The sender keeps its batches, and tries again later."""

    reason = REASON


@dataclass(frozen=True, slots=True)
class Hold:
    agent_id: str
    boot_id: str
    by: str
    at: str
    why: str
    lifted_by: str | None = None
    lifted_at: str | None = None
    lifted_why: str | None = None

    @property
    def active(self) -> bool:
        return self.lifted_at is None

    def document(self) -> Document:
        return {name: getattr(self, name) for name in self.__slots__}


class Holds:
    """The holds that a collector knows, and how operators change them."""

    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient
        self._active: dict[tuple[str, str], Hold] = {}
        self._version: Version | None = None

    def covers(self, identity: BatchIdentity) -> bool:
        """For ``orphans``: nothing of a held agent and boot is adopted."""
        return (identity.agent_id, identity.boot_id) in self._active

    def check(self, identity: BatchIdentity) -> None:
        hold = self._active.get((identity.agent_id, identity.boot_id))
        if hold is not None:
            raise IdentityQuarantined(
                f"agent {hold.agent_id}, boot {hold.boot_id} is in quarantine since {hold.at}: {hold.why}",
                remedy=f"keep the batch; {hold.by} or another operator lifts it with `holdfast conflicts lift`",
            )

    async def refresh(self) -> None:
        found = await self._store.find(layout.HOLDS) if self._version is None else await self._again(self._version)
        if found is None or isinstance(found, NotModified):
            return
        document = codec.decode(found.body, key=layout.HOLDS)
        codec.expect(document, format_name=HOLDS_FORMAT, newest=1, key=layout.HOLDS)
        if document.get("value") is None:
            raise Corrupt(f"{layout.HOLDS}: holds nothing")  # an unreadable register must not lift a hold
        holds = _holds(document["value"])
        self._active = {(each.agent_id, each.boot_id): each for each in holds if each.active}
        self._version = found.version

    async def run(self, every_s: float) -> None:
        """Refresh until cancelled. While the store does not answer, the holds read last stay in effect."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.refresh()
            except HoldfastError as error:
                _log.warning("holds could not be read: %s", error)

    async def all(self) -> tuple[Hold, ...]:
        found = await self._register().read()
        return () if found is None else _holds(found.value)

    async def hold(self, agent_id: str, boot_id: str, *, by: str, why: str) -> Hold:
        """Add a hold; returns the current one, which is kept if it exists."""
        _check(by, why)
        ours = Hold(agent_id, boot_id, by, iso(self._ambient.clock.wall_ns()), why)

        def change(current: object) -> list[Document] | Unchanged:
            holds = _holds(current)
            return (
                UNCHANGED
                if _active(holds, agent_id, boot_id)
                else [*(each.document() for each in holds), ours.document()]
            )

        edited = await self._register().edit(f"hold {self._ambient.ids.attempt()}", change)
        standing = _active(_holds(edited.value), agent_id, boot_id)
        return standing or ours

    async def lift(self, agent_id: str, boot_id: str, *, by: str, why: str) -> Hold:
        _check(by, why)
        now = iso(self._ambient.clock.wall_ns())

        def change(current: object) -> list[Document]:
            holds = _holds(current)
            standing = _active(holds, agent_id, boot_id)
            if standing is None:
                raise NotFound(
                    f"agent {agent_id}, boot {boot_id} is not in quarantine", remedy="see `holdfast conflicts holds`"
                )
            return [
                {
                    **each.document(),
                    **({"lifted_by": by, "lifted_at": now, "lifted_why": why} if each is standing else {}),
                }
                for each in holds
            ]

        edited = await self._register().edit(f"lift {self._ambient.ids.attempt()}", change)
        return next(
            each for each in reversed(_holds(edited.value)) if (each.agent_id, each.boot_id) == (agent_id, boot_id)
        )

    async def _again(self, version: Version) -> Object | NotModified:
        return await self._store.get_unless(layout.HOLDS, version)

    def _register(self) -> "Register[object]":
        return Register(self._store, layout.HOLDS, Plain(HOLDS_FORMAT), self._ambient)


def _holds(value: object) -> tuple[Hold, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Corrupt(f"{layout.HOLDS}: {type(value).__name__} is no list of holds")
    return tuple(map(_hold, value))


def _hold(row: object) -> Hold:
    given: dict[str, Any] = {name: row.get(name) for name in Hold.__slots__} if isinstance(row, dict) else {}
    said = all(isinstance(given.get(name), str) for name in ("agent_id", "boot_id", "by", "at", "why"))
    if not said or not all(isinstance(each, str | None) for each in given.values()):
        raise Corrupt(f"{layout.HOLDS}: {row!r:.200} is no hold")
    return Hold(**given)


def _active(holds: tuple[Hold, ...], agent_id: str, boot_id: str) -> Hold | None:
    return next((each for each in holds if each.active and (each.agent_id, each.boot_id) == (agent_id, boot_id)), None)


def _check(by: str, why: str) -> None:
    for what, text in (("by whom", by), ("why", why)):
        if not text.strip():
            raise Invalid(f"a hold says {what}", remedy="give --by and --why")
