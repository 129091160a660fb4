"""Live state as server-sent events: each as OpenAPI and the page on HTTP have it, and completeness when it changes."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from holdfast.server.models import EVENTS
from holdfast.server.routes import HEARTBEAT_NS, events
from holdfast.telemetry import Alert, Gauge, Log, State
from holdfast.telemetry.live.select import LiveQuery
from tests.tidy.tree import ROOT
from tests.unit.server.server_desk import ServerDesk, frame, server_desk

EVERYTHING = (Gauge("load", 1.5, 1_000), Log("full", 1_000), Alert("hot", State.FIRING, 1_000))


async def next_event(stream: AsyncIterator[bytes]) -> tuple[str, Any]:
    """Its name and its document."""
    name, data = (await anext(stream)).decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def settled(desk: ServerDesk) -> None:
    """Live state was rebuilt: from here on its completeness stays."""
    while not (await desk.get("/readyz"))["live_rebuilt"]:
        await asyncio.sleep(0.01)


async def test_every_event_has_the_fields_that_are_described(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    documented = dict(
        re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", page.partition("## Live state")[2], re.MULTILINE)
    )
    async with server_desk(tmp_path) as desk:
        schemas = (await desk.private.get("/openapi.json")).json()["components"]["schemas"]
        await settled(desk)
        stream = events(desk.service, LiveQuery())
        seen = [await next_event(stream)]
        long = Log("x" * (1 << 20), 1)
        for number in range(20):  # more bytes than wait for a reader
            body = frame(*EVERYTHING, long, seq=number * 4)
            assert (await desk.post(body, seqs=(number * 4, number * 4 + 3))).is_success
        seen += [await next_event(stream) for _ in range(2)]
        desk.watch.advance(seconds=HEARTBEAT_NS / 1_000_000_000)
        seen += [await next_event(stream) for _ in range(2)]
        await stream.aclose()
    assert {name for name, _ in seen} == set(EVENTS)
    for name, document in seen:
        EVENTS[name].model_validate(document)
        fields = set(schemas[EVENTS[name].__name__]["properties"])
        assert set(re.findall(r"`(\w+)`", documented[name])) == fields
