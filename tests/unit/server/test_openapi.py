"""What the applications say of their answers is what they answer."""

from pathlib import Path
from typing import Any

from holdfast.ingest import Gauge, Log
from holdfast.ingest.frame import Reason
from holdfast.ingest.records import Alert, State
from holdfast.server.app import IngestApp, private_app
from holdfast.server.faults import REASONS
from tests.unit.server.server_desk import frame, server_desk

FRAMES = {each.value for each in Reason}


def error_of(response: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = response["content"]["application/json"]["schema"]["properties"]["error"]
    assert found["required"] == ["kind", "reason", "message", "remedy"]
    return found


def reasons(response: dict[str, Any]) -> set[str]:
    return set(error_of(response)["properties"]["reason"]["enum"])


async def test_refusals_are_described_with_the_reasons_that_a_path_has(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        descriptions = IngestApp(desk.service).framework.openapi(), private_app(desk.service).openapi()
    responses = {
        (path, status): found
        for description in descriptions
        for path, methods in description["paths"].items()
        for operation in methods.values()
        for status, found in operation["responses"].items()
        if status != "200"
    }
    for (path, status), found in responses.items():
        known = {name for name, row in REASONS.items() if row.status == int(status)}
        assert reasons(found) <= (known | FRAMES if path == "/ingest/v1/batch" else known)
        assert ("Retry-After" in found.get("headers", {})) == (status in ("429", "503"))
    assert reasons(responses["/api/v1/live", "400"]) == {"bad_request"}
    for description in descriptions:
        responses_of_ready = description["paths"]["/readyz"]["get"]["responses"]
        assert reasons(responses_of_ready["503"]) == {"draining", "not_ready"}
    assert reasons(responses["/ingest/v1/batch", "400"]) > FRAMES - {"too_large"}


async def test_what_is_answered_has_the_fields_that_are_described(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        records = (Gauge("load", 1.5, 1_000), Log("full", 1_000), Alert("hot", State.FIRING, 1_000))
        assert (await desk.post(frame(*records), seqs=(0, 2))).status_code == 200
        private, ingest = [(await each.get("/openapi.json")).json()["paths"] for each in (desk.private, desk.ingest)]
        for path in ("/api/v1/live", "/readyz", "/healthz"):
            schema = private[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            compare(await desk.get(path), schema)
        schema = ingest["/readyz"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        compare((await desk.ingest.get("/readyz")).json(), schema)
        conflict = (await desk.post(frame(Gauge("load", 2.5, 1_000), *records[1:]), seqs=(0, 2))).json()["error"]
        described = error_of(ingest["/ingest/v1/batch"]["post"]["responses"]["409"])["properties"]
        assert set(conflict) == set(described)
        desk.service.begin_draining()
        told = (await desk.get("/readyz", 503))["error"]
        assert set(told) == set(error_of(private["/readyz"]["get"]["responses"]["503"])["properties"])
        told = (await desk.ingest.get("/readyz")).json()["error"]
        assert set(told) == set(error_of(ingest["/readyz"]["get"]["responses"]["503"])["properties"])


async def test_every_path_is_described_with_the_one_type_of_its_answer(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        paths = (await desk.private.get("/openapi.json")).json()["paths"]
        types = {
            path: list(about["responses"]["200"]["content"]) for path, each in paths.items() for about in each.values()
        }
        others = {path: found for path, found in types.items() if found != ["application/json"]}
        assert others == {"/api/v1/live/stream": ["text/event-stream"], "/metrics": ["text/plain"]}
        told = (await desk.private.get("/metrics")).headers["content-type"]
        assert told.startswith("text/plain; version=0.0.4")


def compare(answer: Any, schema: dict[str, Any]) -> None:
    """Every field of the answer is described, and what is always there is there."""
    if isinstance(answer, dict) and "properties" in schema:
        assert set(schema["required"]) <= set(answer) <= set(schema["properties"])
        for name, value in answer.items():
            compare(value, schema["properties"][name])
    if isinstance(answer, list) and "items" in schema:
        assert answer
        for each in answer:
            compare(each, schema["items"])


async def test_what_is_wrong_or_not_there_has_a_reason_of_the_table(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        for path, status, reason in (
            ("/api/v1/live?label=nolabel", 400, "bad_request"),
            ("/api/v1/live?series=x", 400, "bad_request"),
            ("/api/v1/metrics/query?metric=q&step=foo", 400, "bad_request"),
            ("/api/v1/metrics/query?metric=q", 404, "not_found"),
            ("/api/v1/holds?agent=x", 400, "bad_request"),
            ("/nothing", 404, "no_such_route"),
        ):
            told = (await desk.get(path, status))["error"]
            assert (told["reason"], REASONS[reason].status) == (reason, status)
            assert told["remedy"]
