"""Agents and boots in quarantine: every collector refuses them, by name, until the hold is lifted.

``meta/ingest-holds.json`` is one register with every hold, lifted ones too: who, when and why. Collectors read it every
``ingest.holds_refresh_ms``, with a condition, so a hold takes effect within that time everywhere and costs no request
on the path of a batch. What arrives before is accepted as ever; a hold stops an agent, it does not undo.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Denied, HoldfastError, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.register import UNCHANGED, Plain, Register, Unchanged
from holdfast.objects.store import NotModified, Object, Store, Version
from holdfast.telemetry.accept import layout
from holdfast.telemetry.identity import BatchIdentity

FORMAT = "holdfast.ingest_holds"
REASON = "identity_quarantined"
_log = logger("ingest")


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
        codec.expect(document, format_name=FORMAT, newest=1, key=layout.HOLDS)
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
        return Register(self._store, layout.HOLDS, Plain(FORMAT), self._ambient)


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
