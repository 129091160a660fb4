"""Identity conflicts: their records, the decisions of operators, and the agents that collectors refuse.

Two frames have one identity, and one of them was accepted. The **record** of the conflict is created once per identity
and submitted hash, so it has the time of the first submission, also when another collector sees the conflict again. The
submitted bytes are in the store before the record that names them.

A **decision** has an author, a time and a reason. The decisions of a conflict are in one register beside its record.
*Existing is authoritative*: the accepted batch counts, and the agent may drop the other. That is final, and garbage
collection removes the record and then the bytes. *Quarantine identity*: agent and boot are held until an operator has
investigated; the other decision may follow.

A **hold** makes every collector refuse an agent and boot until it is lifted. One register, ``meta/ingest-holds.json``,
has all holds, lifted ones too. Collectors read it every ``ingest.holds_refresh_ms``, with a condition, so a hold takes
effect within that time everywhere and costs no request on the path of a batch. Batches that arrive before are accepted.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Denied, HoldfastError, Incompatible, Invalid, NotFound, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.record import Record
from holdfast.base.telemetry import logger
from holdfast.objects.register import UNCHANGED, Register, Shape, Unchanged
from holdfast.objects.store import CREATE, Lost, NotModified, Store, Version
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.identity import BatchIdentity

RESOLUTION_FORMAT = "holdfast.conflict_resolution"
HOLDS_FORMAT = "holdfast.ingest_holds"
REASON = "identity_quarantined"
SHORTEST = 6
"""Characters of a hash by which people name a conflict."""

_log = logger("ingest")

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class _Rows(Shape[tuple[R, ...]], Generic[R]):
    """A register whose value is a list of records."""

    format_name: str
    kind: type[R]

    def read(self, document: Document, key: str) -> tuple[R, ...]:
        codec.expect(document, format_name=self.format_name, newest=1, key=key)
        rows = document.get("value")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Corrupt(f"{key}: field value is {rows!r:.80}, not a list of objects")
        return tuple(self.kind.parse(row, key=key) for row in rows)

    def write(self, value: tuple[R, ...], previous: Document | None) -> Document:
        rows = [row.document() for row in value]
        return {**(previous or {}), "format": self.format_name, "version": 1, "value": rows}


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
        raise Unavailable(f"{ours.key}: was removed meanwhile, because the conflict was resolved")
    return ConflictManifest.read(found)


async def find_conflict(store: Store, identity: BatchIdentity, submitted_sha256: str) -> ConflictManifest | None:
    found = await store.find(layout.conflict_key(identity, submitted_sha256))
    return None if found is None else ConflictManifest.read(found)


async def conflicts_of(store: Store, identity: BatchIdentity) -> list[ConflictManifest]:
    """All conflicts over this identity. ``Corrupt`` or ``Incompatible`` if one cannot be read."""
    keys = [key async for key in store.keys(layout.conflict_folder(identity))]
    return [ConflictManifest.read(await store.get(key)) for key in keys]


@dataclass(frozen=True, slots=True)
class UnreadableConflict:
    """A conflict record that cannot be read. Its key has the identity and the hash."""

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
    """All recorded conflicts, of one agent or of all agents."""
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


@dataclass(frozen=True)
class Decision(Record):
    WHAT = "a decision about a conflict"

    resolution: Resolution
    by: str
    at: str
    why: str


class Resolutions:
    """The decisions about conflicts."""

    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient

    async def of(self, identity: BatchIdentity, submitted_sha256: str) -> tuple[Decision, ...]:
        """All decisions about a conflict, the latest last."""
        found = await self._register(identity, submitted_sha256).read()
        return () if found is None else found.value

    async def decide(
        self, identity: BatchIdentity, submitted_sha256: str, resolution: Resolution, *, by: str, why: str
    ) -> tuple[Decision, ...]:
        """Record a decision, and hold agent and boot if that is decided. Returns all decisions. Repeating the latest
        decision changes nothing; ``Refused`` after the final one."""
        _check("a resolution", by, why)
        ours = Decision(resolution, by, iso(self._ambient.clock.wall_ns()), why)

        def change(current: tuple[Decision, ...] | None) -> tuple[Decision, ...] | Unchanged:
            before = current or ()
            if before and before[-1].resolution is resolution:
                return UNCHANGED
            if is_final(before):
                raise Refused(
                    f"the conflict over {identity} was resolved by {before[-1].by} at {before[-1].at}: the accepted"
                    " batch is authoritative",
                    remedy="that is final: the agent may have dropped its batch since",
                )
            return (*before, ours)

        register = self._register(identity, submitted_sha256)
        decisions = (await register.edit(f"decide {self._ambient.ids.attempt()}", change)).value
        # After the decision: if this process dies in between, a decision without its hold does less harm than a hold
        # without a recorded reason.
        if resolution is Resolution.QUARANTINE_IDENTITY:
            await Holds(self._store, self._ambient).hold(identity.agent_id, identity.boot_id, by=by, why=why)
        return decisions

    async def may_go(self, identity: BatchIdentity, submitted_sha256: str) -> bool:
        """Whether the bytes that lost a conflict may be deleted."""
        return is_final(await self.of(identity, submitted_sha256))

    def _register(self, identity: BatchIdentity, submitted_sha256: str) -> Register[tuple[Decision, ...]]:
        key = layout.resolution_key(identity, submitted_sha256)
        return Register(self._store, key, _Rows(RESOLUTION_FORMAT, Decision), self._ambient)


def is_final(decisions: tuple[Decision, ...]) -> bool:
    return bool(decisions) and decisions[-1].resolution is Resolution.EXISTING_IS_AUTHORITATIVE


async def find_by_hash(store: Store, prefix: str) -> ConflictManifest:
    """The conflict whose submitted hash begins with ``prefix``. Reads names, and then one record."""
    if len(prefix) < SHORTEST:
        raise Invalid(f"{prefix!r} is too short to name a conflict", remedy=f"give {SHORTEST} characters or more")
    keys = [key async for key in store.keys(layout.CONFLICTS) if key.rpartition("/")[2].startswith(prefix.lower())]
    if not keys:
        raise NotFound(f"no recorded conflict has submitted bytes {prefix}", remedy="see `holdfast conflicts list`")
    if len(keys) > 1:
        raise Invalid(f"{len(keys)} conflicts begin with {prefix}", remedy="give more of the hash")
    return ConflictManifest.read(await store.get(keys[0]))


class IdentityQuarantined(Denied):
    """An operator holds this agent and boot. The sender keeps its batches, and tries again later."""

    reason = REASON


@dataclass(frozen=True)
class Hold(Record):
    WHAT = "a hold"

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


_HOLDS = _Rows(HOLDS_FORMAT, Hold)


class Holds:
    """The holds that a collector has read, and how operators change them."""

    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient
        self._register = Register(store, layout.HOLDS, _HOLDS, ambient)
        self._active: dict[tuple[str, str], Hold] = {}
        self._version: Version | None = None

    def covers(self, identity: BatchIdentity) -> bool:
        """For ``orphans``: no batch of a held agent and boot is adopted."""
        return (identity.agent_id, identity.boot_id) in self._active

    def check(self, identity: BatchIdentity) -> None:
        hold = self._active.get((identity.agent_id, identity.boot_id))
        if hold is not None:
            raise IdentityQuarantined(
                f"agent {hold.agent_id}, boot {hold.boot_id} is in quarantine since {hold.at}: {hold.why}",
                remedy=f"keep the batch; {hold.by} or another operator lifts it with `holdfast conflicts lift`",
            )

    async def refresh(self) -> None:
        """Read the register if it has changed. One that cannot be read lifts no hold."""
        if self._version is None:
            found = await self._store.find(layout.HOLDS)
        else:
            changed = await self._store.get_unless(layout.HOLDS, self._version)
            found = None if isinstance(changed, NotModified) else changed
        if found is None:
            return
        holds = _HOLDS.read(codec.decode(found.body, key=layout.HOLDS), layout.HOLDS)
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
        found = await self._register.read()
        return () if found is None else found.value

    async def hold(self, agent_id: str, boot_id: str, *, by: str, why: str) -> Hold:
        """Add a hold. Returns the active one, which is kept if it exists."""
        _check("a hold", by, why)
        ours = Hold(agent_id, boot_id, by, iso(self._ambient.clock.wall_ns()), why)

        def change(current: tuple[Hold, ...] | None) -> tuple[Hold, ...] | Unchanged:
            holds = current or ()
            return UNCHANGED if _active(holds, agent_id, boot_id) else (*holds, ours)

        edited = await self._register.edit(f"hold {self._ambient.ids.attempt()}", change)
        return _active(edited.value, agent_id, boot_id) or ours

    async def lift(self, agent_id: str, boot_id: str, *, by: str, why: str) -> Hold:
        """End a hold. ``NotFound`` if there is none."""
        _check("a hold", by, why)
        now = iso(self._ambient.clock.wall_ns())

        def change(current: tuple[Hold, ...] | None) -> tuple[Hold, ...]:
            holds = current or ()
            active = _active(holds, agent_id, boot_id)
            if active is None:
                raise NotFound(
                    f"agent {agent_id}, boot {boot_id} is not in quarantine", remedy="see `holdfast conflicts holds`"
                )
            lifted = replace(active, lifted_by=by, lifted_at=now, lifted_why=why)
            return tuple(lifted if each is active else each for each in holds)

        edited = await self._register.edit(f"lift {self._ambient.ids.attempt()}", change)
        return next(each for each in reversed(edited.value) if (each.agent_id, each.boot_id) == (agent_id, boot_id))


def _active(holds: tuple[Hold, ...], agent_id: str, boot_id: str) -> Hold | None:
    return next((each for each in holds if each.active and (each.agent_id, each.boot_id) == (agent_id, boot_id)), None)


def _check(what: str, by: str, why: str) -> None:
    for name, text in (("by whom", by), ("why", why)):
        if not text.strip():
            raise Invalid(f"{what} says {name}", remedy="give --by and --why")
