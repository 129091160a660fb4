"""Conflicts are decided on record, holds reach every collector, and both reach the agent."""

import asyncio

import pytest

from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.objects.layer import Layer
from holdfast.objects.store import Object
from holdfast.sim import ingest_kit as kit
from holdfast.telemetry.accept import collector as collecting
from holdfast.telemetry.accept.accept import Accepted, Answer, IdentityConflict
from holdfast.telemetry.accept.collector import Guarded
from holdfast.telemetry.accept.conflicts import Holds, IdentityQuarantined, Resolution, Resolutions, find_by_hash
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

FIRST, OTHER = kit.submission(1), kit.submission(1, variant=1)
EXISTING, QUARANTINE = Resolution.EXISTING_IS_AUTHORITATIVE, Resolution.QUARANTINE_IDENTITY


class Desk(AcceptDesk):
    def __init__(self) -> None:
        super().__init__()
        self.resolutions = Resolutions(self.store(), self.ambient())
        self.holds = Holds(self.store(), self.ambient())

    def guarded(self, name: str = "collector-1") -> tuple[Guarded, Holds]:
        holds = Holds(self.store(), self.ambient())
        return Guarded(self.collector(name), holds, Resolutions(self.store(), self.ambient())), holds

    async def conflict(self) -> Answer:
        collector, _ = self.guarded()
        await collector.accept(FIRST)
        return await collector.accept(OTHER)

    async def decide(self, resolution: Resolution, why: str = "cloned machine") -> None:
        await self.resolutions.decide(FIRST.identity, OTHER.frame_sha256, resolution, by="anna", why=why)


async def test_a_decision_has_author_time_and_reason_and_reaches_the_agent() -> None:
    desk = Desk()
    answer = await desk.conflict()
    assert isinstance(answer, IdentityConflict)
    assert answer.resolution is None
    with pytest.raises(Invalid, match="says why"):
        await desk.decide(EXISTING, "  ")
    await desk.decide(QUARANTINE)
    await desk.decide(EXISTING, "the clone is gone")
    await desk.decide(EXISTING, "again")  # changes nothing
    with pytest.raises(Refused, match="resolved by anna"):
        await desk.decide(QUARANTINE)
    first, second = await desk.resolutions.of(FIRST.identity, OTHER.frame_sha256)
    assert (first.resolution, first.by, first.why) == (QUARANTINE, "anna", "cloned machine")
    assert (second.resolution, second.why) == (EXISTING, "the clone is gone")
    assert first.at <= second.at
    collector, _ = desk.guarded("collector-2")
    again = await collector.accept(OTHER)
    assert isinstance(again, IdentityConflict)
    assert again.resolution == "existing_is_authoritative"


class Away(Layer):
    """A store that does not answer."""

    async def get(self, key: str) -> Object:
        await asyncio.Event().wait()
        raise AssertionError(key)


async def test_a_conflict_is_answered_while_the_store_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collecting, "RESOLUTION_S", 0.01)
    desk = Desk()
    await desk.conflict()
    resolutions = Resolutions(Away(desk.store()), desk.ambient())
    async with asyncio.timeout(20):
        answer = await Guarded(desk.collector(), desk.holds, resolutions).accept(OTHER)
    assert isinstance(answer, IdentityConflict)
    assert answer.resolution is None


async def test_every_collector_refuses_a_held_identity_until_it_is_lifted() -> None:
    desk = Desk()
    await desk.holds.hold("agent", "boot", by="anna", why="two machines")
    others = [desk.guarded(name) for name in ("collector-1", "collector-2")]
    for collector, holds in others:
        await holds.refresh()
        with pytest.raises(IdentityQuarantined, match="two machines"):
            await collector.accept(FIRST)
    assert not desk.effects
    lifted = await desk.holds.lift("agent", "boot", by="bo", why="looked into")
    assert (lifted.lifted_by, lifted.lifted_why) == ("bo", "looked into")
    for collector, holds in others:
        await holds.refresh()
        assert isinstance(await collector.accept(FIRST), Accepted)


async def test_holds_keep_their_history() -> None:
    desk = Desk()
    first = await desk.holds.hold("agent", "boot", by="anna", why="one")
    assert await desk.holds.hold("agent", "boot", by="bo", why="two") == first
    await desk.holds.lift("agent", "boot", by="bo", why="done")
    await desk.holds.hold("agent", "boot", by="cy", why="three")
    assert [(each.by, each.active) for each in await desk.holds.all()] == [("anna", False), ("cy", True)]
    with pytest.raises(NotFound, match="not in quarantine"):
        await desk.holds.lift("agent", "other boot", by="bo", why="?")


async def test_a_conflict_is_found_by_the_beginning_of_its_hash() -> None:
    desk = Desk()
    await desk.conflict()
    store = desk.store()
    found = await find_by_hash(store, OTHER.frame_sha256[:8])
    assert found.submitted_frame_sha256 == OTHER.frame_sha256
    with pytest.raises(NotFound, match="no recorded conflict"):
        await find_by_hash(store, "0" * 64)
    with pytest.raises(Invalid, match="too short"):
        await find_by_hash(store, "ab")
