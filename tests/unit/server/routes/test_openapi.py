"""What OpenAPI says of responses is what the applications answer."""

from pathlib import Path
from typing import Any

from holdfast.server import models
from holdfast.server.app import ingest_app, private_app
from holdfast.server.errors import REASONS
from holdfast.telemetry import Gauge, Log
from holdfast.telemetry.frame import Reason
from holdfast.telemetry.records import Alert, State
from tests.unit.server.server_desk import frame, server_desk

FRAMES = {each.value for each in Reason}


def reasons(response: dict[str, Any]) -> set[str]:
    return set(response["description"].split(", "))


async def test_refusals_are_described_with_the_reasons_that_a_path_has(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        descriptions = ingest_app(desk.service).openapi(), private_app(desk.service).openapi()
    responses = {
        (path, status): found
        for description in descriptions
        for path, methods in description["paths"].items()
        for operation in methods.values()
        for status, found in operation["responses"].items()
        if status not in ("200", "default")
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


async def test_answers_are_valid_for_the_models_that_describe_them(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        records = (Gauge("load", 1.5, 1_000), Log("full", 1_000), Alert("hot", State.FIRING, 1_000))
        receipt = await desk.post(frame(*records), seqs=(0, 2))
        models.Receipt.model_validate_json(receipt.content)
        live = models.LiveAnswer.model_validate(await desk.get("/api/v1/live"))
        assert live.series
        assert live.logs
        assert live.alerts
        models.ReadyState.model_validate(await desk.get("/readyz"))
        models.Alive.model_validate(await desk.get("/healthz"))
        models.Ready.model_validate_json((await desk.ingest.get("/readyz")).content)
        conflict = await desk.post(frame(Gauge("load", 2.5, 1_000), *records[1:]), seqs=(0, 2))
        assert models.ConflictErrorDocument.model_validate_json(conflict.content).error.accepted_manifest_key
        models.ErrorDocument.model_validate(await desk.get("/nothing", 404))
        desk.service.begin_draining()
        models.NotReadyErrorDocument.model_validate(await desk.get("/readyz", 503))
        models.ErrorDocument.model_validate_json((await desk.ingest.get("/readyz")).content)
