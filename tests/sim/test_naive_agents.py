"""Every rule of an agent's queue is needed: without it a simulated world shows the harm."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

import pytest

from holdfast.base.errors import Unavailable
from holdfast.sim.checkers.ingest import CUT_ONCE, KEPT, LINE_ONCE, NO_GAP, ONE_MEANING
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.agents import POSITION, IngestAgents, SimDatabase, SimDisk
from holdfast.sim.world import Process
from holdfast.telemetry.agent.queue import Queue
from holdfast.telemetry.agent.sender import Park, Release
from holdfast.telemetry.agent.shipper import Shipper
from holdfast.telemetry.frame import decode
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Record
from tests.sim.naive import rules

SEEDS = 120


class Unforced(SimDatabase):
    """Leaves it to the operating system when transactions reach the disk."""

    @contextmanager
    def write(self, *, durable: bool = True, adds: int = 0) -> Iterator[sqlite3.Connection]:
        with super().write(durable=False, adds=adds) as database:
            yield database


@dataclass(frozen=True, kw_only=True)
class SendsBeforeDurable(IngestAgents):
    """Sends batches that are not on the disk yet, and so may assign their numbers again."""

    database: ClassVar[type[SimDatabase]] = Unforced


class DropsRefused(Shipper):
    """Removes a batch after any answer of a collector."""

    async def _settle(self, effect: Release | Park, identity: BatchIdentity) -> None:
        await super()._settle(Release(effect.batch), identity)


@dataclass(frozen=True, kw_only=True)
class RemovesOnAnyAnswer(IngestAgents):
    """A conflict removes the batch."""

    shipper: ClassVar[type[Shipper]] = DropsRefused


@dataclass(frozen=True, kw_only=True)
class CutsAgain(IngestAgents):
    """At start, makes one large batch of all batches that wait."""

    async def opened(self, disk: SimDisk, process: Process) -> Queue:
        queue = await super().opened(disk, process)
        waiting: list[Record] = []
        after = -1
        while (queued := await queue.read(after)) is not None:
            waiting += [each.record for each in decode(queued.frame).records()]
            if after < 0:
                queue.next_seq = queued.identity.seq_start
            after = queued.identity.seq_start
            await queue.remove(queued.identity)
        if waiting:
            await queue.append(waiting)
        return queue


@dataclass(frozen=True, kw_only=True)
class NotesPositionsApart(IngestAgents):
    """Saves its position in a log in a transaction of its own."""

    async def append(
        self, process: Process, queue: Queue, records: list[Record], texts: list[str], position: int
    ) -> None:
        work = queue.append(records)
        await process.perform("append", work, key=process.family, argument=texts)
        with suppress(Unavailable):
            await queue.save({POSITION: position})


@pytest.mark.parametrize(
    ("naive", "broken", "first"),
    [
        (SendsBeforeDurable, {ONE_MEANING, KEPT, NO_GAP}, 1),
        (RemovesOnAnyAnswer, {KEPT, NO_GAP}, 1),
        (CutsAgain, {CUT_ONCE}, 1),
        (NotesPositionsApart, {LINE_ONCE}, 1),
    ],
)
def test_a_naive_agent_breaks_its_rule(naive: type[IngestAgents], broken: set[str], first: int) -> None:
    assert any(rules(simulate(naive, seed)) & broken for seed in range(first, first + SEEDS))
