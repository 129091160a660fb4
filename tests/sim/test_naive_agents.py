"""Every rule of an agent's queue is needed: without it a simulated world shows the harm."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from holdfast.base import codec
from holdfast.sim.checkers.ingest import CUT_ONCE, KEPT, LINE_ONCE, NO_GAP, ONE_MEANING
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.agents import IngestAgents, SimFolder
from holdfast.sim.world import Process
from holdfast.telemetry.agent.queue import Position, Queue
from holdfast.telemetry.agent.sender import Park
from holdfast.telemetry.agent.shipper import Shipper
from holdfast.telemetry.frame import decode
from holdfast.telemetry.records import Record
from tests.sim.naive import rules

SEEDS = 120


class Unforced(SimFolder):
    """Leaves it to the system when bytes reach the disk."""

    async def append(self, name: str, at: int, data: bytes) -> None:
        before = self._files[name].durable if name in self._files else b""
        await super().append(name, at, data)
        self._files[name].durable = before


@dataclass(frozen=True, kw_only=True)
class SendsBeforeDurable(IngestAgents):
    """Sends what is not on the disk yet, and so may give its numbers again."""

    async def opened(self, folder: SimFolder, process: Process) -> Queue:
        folder.__class__ = Unforced
        return await super().opened(folder, process)


class DropsRefused(Shipper):
    """A collector has answered, so the batch is done with."""

    async def _park(self, effect: Park) -> None:
        await self._settle(effect.batch, effect)


@dataclass(frozen=True, kw_only=True)
class RemovesOnAnyAnswer(IngestAgents):
    """A conflict removes the batch."""

    shipper: ClassVar[type[Shipper]] = DropsRefused


@dataclass(frozen=True, kw_only=True)
class CutsAgain(IngestAgents):
    """Makes one large batch of all that waits when it starts."""

    async def opened(self, folder: SimFolder, process: Process) -> Queue:
        queue = await super().opened(folder, process)
        waiting: list[Record] = []
        at, start = queue.cursor, queue.cursor_seq
        while (queued := await queue.read(at)) is not None:
            waiting += [each.record for each in decode(queued.frame).records()]
            at = queued.after
        if waiting:
            queue.next_seq = start
            await queue.advance(Position(at.segment, at.offset), start)
            await queue.append(waiting)
        return queue


@dataclass(frozen=True, kw_only=True)
class NotesPositionsApart(IngestAgents):
    """Keeps its position in a log in a file of its own."""

    async def opened(self, folder: SimFolder, process: Process) -> Queue:
        queue = await super().opened(folder, process)
        noted = await folder.read("position.json")
        queue.state["position"] = codec.decode(noted, key="position")["position"] if noted else 0
        return queue

    async def append(
        self, process: Process, queue: Queue, records: list[Record], texts: list[str], position: int
    ) -> None:
        work = queue.append(records)
        await process.perform("append", work, key=process.family, argument=texts)
        queue.state["position"] = position
        await queue.folder.replace("position.json", codec.encode({"position": position}))


@pytest.mark.parametrize(
    ("naive", "broken", "first"),
    [
        (SendsBeforeDurable, {ONE_MEANING, KEPT, NO_GAP}, 1),
        (RemovesOnAnyAnswer, {KEPT, NO_GAP}, 1),
        (CutsAgain, {CUT_ONCE}, 1),
        (NotesPositionsApart, {LINE_ONCE}, 80),
    ],
)
def test_a_naive_agent_does_harm(naive: type[IngestAgents], broken: set[str], first: int) -> None:
    assert any(rules(simulate(naive, seed)) & broken for seed in range(first, first + SEEDS))
