"""A collector with a spool, as a process, while its store is away: what it takes, shows and says, and that it lands."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.telemetry import Client, Gauge
from tests.fakes.fault_proxy import FaultProxy
from tests.integration.collectors import await_start, begin, end, make_token, witness
from tests.integration.run_places import s3
from tests.integration.servers import S3Server


@pytest.mark.soak
async def test_what_waits_is_seen_while_the_store_is_away_and_lands_at_the_next_start(
    ministack: S3Server, tmp_path: Path
) -> None:
    tokens, spool = tmp_path / "tokens.toml", tmp_path / "spool"
    token = make_token(tokens, "web-*")
    proxy = FaultProxy(ministack.endpoint)
    processes: list[subprocess.Popen[str]] = []

    def collector() -> "subprocess.Popen[str]":
        options = ("--acceptance", "local_spool", "--spool", str(spool))
        quick = {"object_landing_interval_ms": 20, "drain_ms": 500}
        processes.append(begin(place, tokens, *options, **quick))
        return processes[-1]

    try:
        async with asyncio.timeout(120), httpx.AsyncClient(timeout=30) as http:
            async with proxy:
                place = s3(ministack, proxy.endpoint)
                one = await asyncio.to_thread(await_start, collector())
                while not (await http.get(f"{one.private}/readyz")).json()["live_rebuilt"]:
                    await asyncio.sleep(0.01)
            async with Client(one.ingest, agent_id="web-1", token=token) as client:
                for number in range(3):
                    await client.send(Gauge("load", number, 1))
            ready: dict[str, Any] = {"landing_problem": None}
            while ready["landing_problem"] is None:
                ready = (await http.get(f"{one.private}/readyz")).raise_for_status().json()
            assert (ready["status"], ready["spool_batches"]) == ("ready", 3)
            live = (await http.get(f"{one.private}/api/v1/live?name=load")).raise_for_status().json()
            assert (live["complete"], live["batches"], len(live["series"])) == (True, 3, 1)
            assert "holdfast_spool_batches 3.0" in (await http.get(f"{one.private}/metrics")).text
            code, log = await asyncio.to_thread(end, one.process)
            last = [json.loads(line) for line in log.splitlines()]
            [answer] = [each for each in last if "in the spool" in each["message"]]
            assert (code, answer["level"].lower()) == (0, "warning")
            assert answer["message"].startswith(f"3 batches remain in the spool {spool}, and will land ")
            away = collector()
            problem = json.loads((await asyncio.to_thread(away.communicate))[1].splitlines()[-1])["error"]
            assert (away.returncode, problem["kind"]) == (5, "unavailable")
            async with proxy:
                again = await asyncio.to_thread(await_start, collector())
                ready = {"spool_batches": 3}
                while ready["spool_batches"]:
                    ready = (await http.get(f"{again.private}/readyz")).raise_for_status().json()
                code, log = await asyncio.to_thread(end, again.process)
            assert (code, "in the spool" in log) == (0, False)
    finally:
        for process in processes:
            if process.poll() is None:
                end(process, kill=True)
    assert len(witness(place.contents())) == 3
