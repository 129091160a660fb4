"""The page for Prometheus."""

from pathlib import Path

from tests.unit.server.server_desk import ServerDesk, frame, server_desk


async def page(desk: ServerDesk) -> dict[str, float]:
    lines = (await desk.private.get("/metrics")).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def test_responses_are_counted_by_listener(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        assert (await desk.post(frame())).status_code == 200
        assert (await desk.ingest.get("/nothing")).status_code == 404
        for _ in range(2):
            await desk.get("/healthz")
        await desk.get("/api/v1/live?nothing=1", 400)
        found = {name: count for name, count in (await page(desk)).items() if "ingest_requests_total" in name}
    name = "holdfast_ingest_requests_total"
    assert found == {
        name + '{listener="ingest",reason="ok",status="200"}': 1,
        name + '{listener="ingest",reason="no_such_route",status="404"}': 1,
        name + '{listener="private",reason="ok",status="200"}': 2,
        name + '{listener="private",reason="bad_request",status="400"}': 1,
    }
