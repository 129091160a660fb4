"""Agents that send to two collectors, one of which is killed on the way."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle

from holdfast.cli.acts import telemetry
from holdfast.cli.acts.stage import ProofFailed, Stage, prove
from holdfast.cli.acts.telemetry import HOSTS, Cut
from holdfast.ingest import BatchConflict, Client, Gauge
from holdfast.ingest.frame import Identity, decode, encode, inspect, pack_sequenced
from holdfast.ingest.records import Record
from holdfast.server.tokens import add_token

AGAIN = 4
"""Every so many batches one is sent again, by an agent that does not trust its first answer."""
KILL_AFTER = 0.4
"""Of all batches."""
LATE = 2
"""Batches that one agent cannot deliver in time."""


@dataclass
class Sent:
    """What agents were told, and what they still have."""

    first_hour: int
    token: str
    told: dict[Identity, str] = field(default_factory=dict)
    """Every identity that a collector acknowledged, with the hash of its frame."""
    late: list[Cut] = field(default_factory=list)
    """Batches that wait on an agent's disk for their network to come back."""
    repeated: int = 0
    retried: int = 0
    conflict: Identity | None = None
    forged: str = ""
    """The hash of the frame that was refused."""


@dataclass(frozen=True)
class Collector:
    name: str
    url: str
    process: asyncio.subprocess.Process


async def accepted_once(stage: Stage) -> str:
    rng = stage.ambient.rng
    _, token = add_token(stage.scratch / "tokens.toml", ("*",), stage.ambient)
    sent = Sent(telemetry.first_hour(stage.ambient.clock.wall_ns()), token)
    outboxes = {host: telemetry.batches(host, sent.first_hour, rng) for host in HOSTS}
    sent.late = _hold_back(outboxes["web-1"], sent.first_hour)
    total = sum(map(len, outboxes.values()))
    async with collectors(stage, "first", "second") as (first, second):
        stage.tell(f"two collectors listen at {first.url} and {second.url}; they know nothing of each other")
        lanes = [
            asyncio.ensure_future(deliver(stage, sent, outbox, urls, total))
            for outbox, urls in zip(outboxes.values(), cycle([[first.url, second.url], [second.url, first.url]]))
        ]
        try:
            await _until(lambda: len(sent.told) >= KILL_AFTER * total, lanes)
            first.process.kill()
            stage.tell(f"the first is killed (SIGKILL) after {len(sent.told)} of {total} batches; agents turn over")
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
        await _conflict(stage, sent, second, outboxes["db-1"][0])
        await _overlap(stage, sent, second, outboxes["web-2"][:2])
        await end(second)  # what it owes to the derived indexes it still writes; the first never will
    prove(len(sent.told) == total + 1, f"{total + 1} batches were cut, {len(sent.told)} acknowledged")
    stage.leave(sent)
    return (
        f"{len(sent.told)} batches acknowledged, {sent.repeated} of them sent again and taken once, "
        f"{sent.retried} turned to the other collector, one conflict put aside"
    )


@asynccontextmanager
async def collectors(stage: Stage, *names: str) -> AsyncIterator[list[Collector]]:
    """Collectors as processes of their own, listening on free ports of the loopback."""
    words = ["collector", "--json", "--listen", "127.0.0.1:0", "--private", "127.0.0.1:0"]
    words += ["--tokens", str(stage.scratch / "tokens.toml")]
    async with AsyncExitStack() as stack:
        begun = [
            await stack.enter_async_context(stage.command(*words, "--collector-id", name, log=f"{name}.log"))
            for name in names
        ]
        found = []
        for name, process in zip(names, begun, strict=True):
            line = await process.stdout.readline() if process.stdout is not None else b""
            if not line:
                raise ProofFailed(f"collector {name} did not start: {stage.last_words(f'{name}.log')}")
            found.append(Collector(name, json.loads(line)["ingest"], process))
        yield found


async def end(collector: Collector) -> None:
    """Politely."""
    collector.process.terminate()
    await collector.process.wait()


async def deliver(stage: Stage, sent: Sent, cuts: Sequence[Cut], urls: list[str], total: int) -> None:
    """One agent's batches, one after the other, to whichever collector answers."""
    if not cuts:
        return
    async with Client(urls, agent_id=cuts[0].identity.agent_id, token=sent.token, ambient=stage.ambient) as client:
        for number, cut in enumerate(cuts):
            delivered = await client.send_frame(cut.frame)
            sent.retried += delivered.tries > 1
            sent.told[cut.identity] = hashlib.sha256(cut.frame).hexdigest()
            stage.status = f"{len(sent.told)} of {total} batches acknowledged"
            if number % AGAIN == 0:
                again = await client.send_frame(cut.frame)
                prove(again.duplicate, f"{cut.identity} was acknowledged, and then accepted once more")
                sent.repeated += 1


async def _until(condition: Callable[[], bool], lanes: Sequence["asyncio.Future[None]"]) -> None:
    """Until it holds, or somebody has failed."""
    while not condition() and not any(lane.done() and lane.exception() for lane in lanes):  # noqa: ASYNC110  # see below
        await asyncio.sleep(0.01)  # several tasks make it true, and each of them may fail


async def _conflict(stage: Stage, sent: Sent, collector: Collector, cut: Cut) -> None:
    """Somebody else sends as this agent, under numbers that are taken."""
    identity = cut.identity
    forged: list[Record] = [
        Gauge("cpu_busy_ratio", 0.5, cut.first_ns) for _ in range(identity.seq_end - identity.seq_start + 1)
    ]
    frame = telemetry.cut(identity.agent_id, identity.boot_id, forged, identity.seq_start).frame
    try:
        async with Client(collector.url, agent_id=identity.agent_id, token=sent.token, ambient=stage.ambient) as client:
            await client.send_frame(frame)
    except BatchConflict:
        sent.conflict, sent.forged = identity, hashlib.sha256(frame).hexdigest()
        stage.tell(f"other bytes under {identity} are refused, and kept for an operator to see")
        return
    raise ProofFailed(f"{identity} was accepted twice, with different bytes")


async def _overlap(stage: Stage, sent: Sent, collector: Collector, pair: Sequence[Cut]) -> None:
    """An agent that has lost its notes cuts two batches anew: half of one and half of the next."""
    records = [each for cut in pair for each in decode(cut.frame).records()]
    middle = len(records) // 2
    agent, boot = pair[0].identity.agent_id, pair[0].identity.boot_id
    frame = encode(pack_sequenced(agent, boot, records[middle // 2 : middle + middle // 2]))
    identity = inspect(frame).identity
    await deliver(stage, sent, [Cut(identity, frame, pair[0].first_ns)], [collector.url], len(sent.told) + 1)
    stage.tell(f"{identity} overlaps two batches that are accepted; it is accepted too, and must not count twice")


def _hold_back(outbox: list[Cut], first_hour: int) -> list[Cut]:
    """Take batches of the first hour out: they will be late. The last one reaches into the second hour, and stays."""
    before = [cut for cut in outbox if cut.first_ns < (first_hour + 1) * telemetry.HOUR_NS]
    held = before[-LATE - 1 : -1]
    outbox[:] = [cut for cut in outbox if cut not in held]
    return held
