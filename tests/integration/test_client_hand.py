"""A client and collector processes: one hangs, one is killed in the middle of a call; each record counts once."""

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.telemetry import Client, Gauge, Undelivered
from tests.integration.collectors import collectors, end, make_token, witness
from tests.integration.run_places import Place, folder


def numbers(place: Place) -> list[tuple[int, int]]:
    """First and last number of every batch in the store."""
    return sorted(identity[2:] for identity in witness(place.contents()))


async def test_a_time_out_of_the_application_and_the_same_records_once_more(tmp_path: Path, place: Place) -> None:
    token = make_token(tmp_path / "tokens.toml", "web-*")
    with collectors(place, tmp_path / "tokens.toml", ()) as (one,):
        async with Client(one.ingest, agent_id="web-1", token=token, batch_records=2) as client:
            await client.send(Gauge("load", 0.0, 1))
            one.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):  # the request is in the kernel's hands, and will be read
                        await client.send([Gauge("load", float(value), value) for value in (1, 2, 3)])
            finally:
                one.process.send_signal(signal.SIGCONT)
            assert len(client.pending) == 2
            receipt = await client.send(Gauge("load", 4.0, 4))
            assert receipt.records == 4
    assert numbers(place) == [(0, 0), (1, 2), (3, 3), (4, 4)]


@pytest.mark.soak
async def test_a_collector_that_is_killed_and_another_that_comes(tmp_path: Path) -> None:
    place = folder(tmp_path / "store")
    token = make_token(tmp_path / "tokens.toml", "web-*")
    with collectors(place, tmp_path / "tokens.toml", (), ()) as (one, two):
        client = Client(one.ingest, agent_id="web-1", token=token, batch_records=1, tries=1)
        sending = asyncio.create_task(client.send([Gauge("load", float(value), value) for value in range(50)]))
        while not sending.done() and len(client.pending) not in range(1, 40):  # some have landed, and some have not
            await asyncio.sleep(0.001)
        end(one.process, kill=True)
        with pytest.raises(Undelivered) as caught:
            await sending
        error = caught.value
        assert len(error.delivered) + len(error.frames) == 50
        async with Client(two.ingest, agent_id="web-1", token=token) as other:
            for frame in error.frames:
                await other.send_frame(frame)
    assert numbers(place) == [(value, value) for value in range(50)]
