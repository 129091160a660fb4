"""A client and collector processes: one hangs, one is killed in the middle of a call; each record counts once."""

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.telemetry import Client, Gauge
from tests.integration.collectors import collectors, make_token, witness
from tests.integration.run_places import Place


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
