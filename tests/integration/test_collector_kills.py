"""Collectors that are killed one after the other, several times, and started again, while senders go on."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.telemetry import Client
from tests.integration.collectors import Running, await_start, begin, end, families, make_token, witness
from tests.integration.run_places import Place
from tests.integration.test_collectors import Ledger, frame

COLLECTORS = 2
KILLS = 4
"""Each one twice: first as it was begun, then as it was started again. The last is not started again."""
AGENTS = 2
BETWEEN = 8
"""Batches that are acknowledged between two kills."""


class Fleet:
    """So many collectors. One that was killed is started again as another process, at another port."""

    def __init__(self, place: Place, tokens: Path) -> None:
        self._place = place
        self._tokens = tokens
        self._started = 0
        self.processes = [self._begin() for _ in range(COLLECTORS)]
        self.slots = [asyncio.create_task(asyncio.to_thread(await_start, process)) for process in self.processes]
        self.urls: list[str] = []

    async def begun(self) -> None:
        self.urls = [(await slot).ingest for slot in self.slots]

    async def kill(self, number: int) -> None:
        """One that listens, while another one does."""
        victim, _ = await self.slots[number], await self.slots[(number + 1) % COLLECTORS]
        end(victim.process, kill=True)

    def start_again(self, number: int) -> None:
        self.processes.append(self._begin())
        self.slots[number] = asyncio.create_task(self._again(number, len(self.processes) - 1))

    async def _again(self, number: int, process: int) -> Running:
        running = await asyncio.to_thread(await_start, self.processes[process])
        self.urls[number] = running.ingest
        return running

    def _begin(self) -> "subprocess.Popen[str]":
        self._started += 1
        return begin(self._place, self._tokens, "--collector-id", f"process-{self._started}")

    async def end(self) -> list[tuple[int, str]]:
        """How those ended that were not killed."""
        return [end(process) for process in self.processes if process.poll() is None]


@pytest.mark.soak
async def test_collectors_killed_in_turn_and_started_again_keep_all_that_was_acknowledged(
    place: Place, tmp_path: Path
) -> None:
    token = make_token(tmp_path / "tokens.toml", "web-*")
    fleet = Fleet(place, tmp_path / "tokens.toml")
    ledger = Ledger()
    over = asyncio.Event()
    plain = ssl.create_default_context()  # made once: no collector here speaks TLS

    async def deliver(name: str, order: Sequence[int], bodies: list[bytes]) -> None:
        """The same bytes, until a collector accepts them; each time to where collectors are by now."""
        while bodies:
            urls = [fleet.urls[each] for each in order]
            async with Client(urls, agent_id=name, token=token, backoff_ms=10, tries=6, verify=plain) as client:
                taken = await asyncio.gather(*(ledger.send(client, body) for body in bodies))
            bodies = [body for body, done in zip(bodies, taken, strict=True) if not done]

    async def sender(number: int, order: Sequence[int]) -> None:
        """Odd agents send two variants of each batch."""
        name = f"web-{number}"
        for batch in range(10_000):
            if over.is_set():
                return
            await deliver(name, order, [frame(name, batch, variant) for variant in range(1 + number % 2)])

    async def killer() -> None:
        for kill in range(KILLS):
            enough = len(ledger.acknowledged) + BETWEEN
            while len(ledger.acknowledged) < enough:
                await asyncio.sleep(0.01)
            await fleet.kill(kill % COLLECTORS)
            if kill < KILLS - 1:
                fleet.start_again(kill % COLLECTORS)
        over.set()

    try:
        await fleet.begun()
        both = [(number, order) for number in range(AGENTS) for order in ((0, 1), (1, 0))]
        async with asyncio.timeout(120):
            await asyncio.gather(killer(), *(sender(number, order) for number, order in both))
            ended = await fleet.end()
    finally:
        for process in fleet.processes:
            if process.poll() is None:
                end(process, kill=True)

    assert [code for code, _ in ended] == [0] * (COLLECTORS - 1), ended
    contents = place.contents()
    accepted = witness(contents)
    assert {identity: {digest} for identity, digest in accepted.items()} == ledger.acknowledged
    assert ledger.new <= len(accepted)
    assert families(contents)["quarantine"] == sum(int(agent[4:]) % 2 for agent, *_ in accepted)
    accepting = {json.loads(body)["collector_id"] for key, body in contents.items() if key.startswith("accepted/v1/")}
    assert len(accepting) > COLLECTORS  # also those that were started again
