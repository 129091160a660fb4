"""What operators decide about identity conflicts, on record: who, when and why.

    quarantine/v1/resolutions/agent={hex}/boot={hex}/{start}-{end}/{sha256}.json    one register per conflict

Two decisions, as the specification names them. *Existing is authoritative*: the accepted batch stands, the other may be
dropped by the agent that parked it, and its bytes may be removed; that is final. *Quarantine identity*: the agent and
boot are held (see ``holds``) until an operator has looked into it; the other decision may follow.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.errors import Corrupt, Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.register import UNCHANGED, Plain, Register, Unchanged
from holdfast.objects.store import Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import ConflictManifest
from holdfast.telemetry.identity import BatchIdentity

FORMAT = "holdfast.conflict_resolution"
SHORTEST = 6
"""Characters of a hash by which people name a conflict."""


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
        return Register(self._store, layout.resolution_key(identity, submitted_sha256), Plain(FORMAT), self._ambient)


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
