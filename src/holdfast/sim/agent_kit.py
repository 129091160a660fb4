"""A disk for simulated agents that forgets what was not forced to it, and a road to collectors that loses answers."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.base.errors import Ambiguous, Unavailable
from holdfast.sim.world import Process
from holdfast.telemetry.accept.accept import Accepted
from holdfast.telemetry.accept.collector import Collector
from holdfast.telemetry.accept.submit import submission_of
from holdfast.telemetry.agent.sender import Answer, Busy, Conflict, NoAnswer, Taken
from holdfast.telemetry.folder import Piece
from holdfast.telemetry.frame import Identity, decode, encode, pack_sequenced
from holdfast.telemetry.frame.batch import Sequenced
from holdfast.telemetry.records import Log


@dataclass(slots=True)
class _File:
    data: bytearray
    durable: bytes | None
    """What is there after the power fails; None for no file."""


@dataclass(slots=True)
class SimDisk:
    """Of one machine, over all lives of its agent."""

    files: dict[str, _File] = field(default_factory=dict)
    removed: dict[str, bytes] = field(default_factory=dict)
    """Removals that the power may undo."""

    def fail_power(self, rng: random.Random) -> None:
        for name, body in self.removed.items():
            if rng.random() < 0.5 and name not in self.files:
                self.files[name] = _File(bytearray(body), body)
        self.removed.clear()
        for name, file in list(self.files.items()):
            if bytes(file.data) == file.durable or rng.random() < 0.2:
                continue
            if file.durable is None:
                del self.files[name]
                continue
            kept = len(file.durable)
            torn = file.data[: rng.randint(kept, len(file.data))] if len(file.data) > kept else file.durable
            file.data = bytearray(torn if bytes(torn[:kept]) == file.durable else file.durable)

    def bodies(self) -> dict[str, bytes]:
        return {name: bytes(file.data) for name, file in self.files.items()}


class SimFolder:
    """One life's hold on the disk. Every operation has moments in between at which the life may end."""

    def __init__(self, disk: SimDisk, process: Process, *, slowest_ms: float, full: float) -> None:
        self._files = disk.files
        self._removed = disk.removed
        self._process = process
        self._slowest_ms = slowest_ms
        self._full = full

    async def names(self) -> list[str]:
        await self._turn()
        return sorted(self._files)

    async def size(self, name: str) -> int | None:
        return len(self._files[name].data) if name in self._files else None

    async def read(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        await self._turn()
        if name not in self._files:
            return None
        data = self._files[name].data
        return bytes(data[start:] if length is None else data[start : start + length])

    async def read_pieces(self, pieces: Sequence[Piece]) -> list[bytes]:
        return [await self.read(*piece) or b"" for piece in pieces]

    async def append(self, name: str, at: int, data: bytes) -> None:
        await self._turn()
        file = self._files.setdefault(name, _File(bytearray(), None))
        del file.data[at:]
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            file.data += piece
            await self._turn()
        if self._process.rng.random() < self._full:
            del file.data[at:]
            raise Unavailable(f"{name}: the disk is full")
        file.durable = bytes(file.data)
        await self._turn()

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        await self._turn()
        if self._process.rng.random() < self._full:
            raise Unavailable(f"{name}: the disk is full")
        before = self._files[name].durable if name in self._files else None
        self._files[name] = _File(bytearray(data), before)
        await self._turn()
        if durable:
            self._files[name].durable = data
            await self._turn()

    async def fsync(self, name: str) -> None:
        await self._turn()
        self._files[name].durable = bytes(self._files[name].data)

    async def remove(self, name: str) -> None:
        await self._turn()
        file = self._files.pop(name, None)
        if file is not None and file.durable is not None:
            self._removed[name] = file.durable
        await self._turn()

    async def _turn(self) -> None:
        await asyncio.sleep(self._process.rng.uniform(0, self._slowest_ms) / 1000)


@dataclass(frozen=True, slots=True)
class Road:
    """What may happen between an agent and its collectors."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    rival: float = 0.0
    """How often somebody else has had other bytes accepted under an identity before."""
    resolved: float = 0.0
    """How often an operator says, on a later offer, that those count."""


class SimTransport:
    """Real acceptance at the end of a bad road."""

    def __init__(self, process: Process, collectors: list[Collector], road: Road) -> None:
        self._process = process
        self._collectors = collectors
        self._road = road
        self._seen: set[Identity] = set()

    async def post(self, route: int, identity: Identity, frame: bytes) -> Answer:
        rng = self._process.rng
        await asyncio.sleep(rng.uniform(0, 0.05))
        first = identity not in self._seen
        self._seen.add(identity)
        if first and rng.random() < self._road.rival:
            await self._rival(identity)
        if rng.random() < self._road.lost_request:
            return NoAnswer("the request was lost")
        submission = submission_of(frame, decode(frame))
        try:
            answer = await self._collectors[route].accept(submission)
        except (Unavailable, Ambiguous) as error:
            return Busy(str(error), rng.choice((0, 200)))
        if rng.random() < self._road.lost_answer:
            return NoAnswer("the answer was lost")
        if isinstance(answer, Accepted):
            return Taken(answer.duplicate)
        resolved = not first and rng.random() < self._road.resolved
        if resolved:
            self._process.note("resolves", f"{identity.seq_start}-{identity.seq_end}", identity)
        return Conflict("other bytes were accepted", resolved)

    async def _rival(self, identity: Identity) -> None:
        """A clone of this machine was faster."""
        logs = [Sequenced(seq, Log("rival", 0)) for seq in sorted({identity.seq_start, identity.seq_end})]
        frame = encode(pack_sequenced(identity.agent_id, identity.boot_id, logs))
        try:
            await self._collectors[0].accept(submission_of(frame, decode(frame)))
        except (Unavailable, Ambiguous):
            return
