"""Deciding conflicts over HTTP, on the private listener: what ``holdfast conflicts`` does, for consoles and scripts.

The listener has no tokens: whoever reaches it may decide, so keep it private. A request that changes something must say
that its body is JSON; a page in somebody's browser cannot, without being asked for permission first.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, StringConstraints

from holdfast.ingest.holds import Holds
from holdfast.ingest.manifest import ConflictManifest
from holdfast.ingest.resolutions import Decision, Resolution, Resolutions, find_by_hash
from holdfast.server import openapi
from holdfast.server.faults import Fault
from holdfast.server.service import Service

Answer = Callable[[Service, int, dict[str, Any]], Response]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000)]

SHOW: dict[str, Any] = {"responses": openapi.statuses(400, 404, 500, 503)}
DECIDE: dict[str, Any] = {"responses": openapi.statuses(400, 404, 409, 411, 413, 500, 503)}
HOLDS: dict[str, Any] = {"responses": openapi.statuses(500, 503)}


class Wish(BaseModel):
    """Who decides what, and why."""

    model_config = ConfigDict(extra="forbid")
    resolution: Resolution
    by: _Text
    why: _Text


class Lifting(BaseModel):
    model_config = ConfigDict(extra="forbid")
    agent_id: _Text
    boot_id: _Text
    by: _Text
    why: _Text


def add_conflict_routes(app: FastAPI, service: Service, answer: Answer) -> None:
    resolutions = Resolutions(service.store, service.ambient)
    holds = Holds(service.store, service.ambient)

    @app.get("/api/v1/conflicts/{sha256}", **SHOW)
    async def show(sha256: str) -> Response:
        """One conflict, by the hash of its submitted bytes or the first characters of it, with every decision."""
        conflict = await find_by_hash(service.store, sha256)
        decisions = await resolutions.of(conflict.identity, conflict.submitted_frame_sha256)
        return answer(service, 200, _document(conflict, decisions))

    @app.post("/api/v1/conflicts/{sha256}/resolve", **DECIDE)
    async def resolve(sha256: str, wish: Wish, request: Request) -> Response:
        """Decide a conflict, on record: existing_is_authoritative, which is final, or quarantine_identity."""
        _check_json(request)
        conflict = await find_by_hash(service.store, sha256)
        identity = conflict.identity
        decisions = await resolutions.decide(
            identity, conflict.submitted_frame_sha256, wish.resolution, by=wish.by, why=wish.why
        )
        if wish.resolution is Resolution.QUARANTINE_IDENTITY:
            await holds.hold(identity.agent_id, identity.boot_id, by=wish.by, why=wish.why)
            await service.holds.refresh()
        return answer(service, 200, _document(conflict, decisions))

    @app.get("/api/v1/holds", **HOLDS)
    async def list_holds() -> Response:
        """Agents and boots in quarantine, and those that were."""
        return answer(service, 200, {"holds": [each.document() for each in await holds.all()]})

    @app.post("/api/v1/holds/lift", **DECIDE)
    async def lift(lifting: Lifting, request: Request) -> Response:
        """Let collectors take batches of a held agent and boot again."""
        _check_json(request)
        lifted = await holds.lift(lifting.agent_id, lifting.boot_id, by=lifting.by, why=lifting.why)
        await service.holds.refresh()
        return answer(service, 200, lifted.document())


def _check_json(request: Request) -> None:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Fault("bad_request", "the body is not said to be JSON", remedy="send Content-Type: application/json")


def _document(conflict: ConflictManifest, decisions: tuple[Decision, ...]) -> dict[str, Any]:
    return {
        "quarantine_manifest_key": conflict.key,
        **conflict.document(),
        "decisions": [each.document() for each in decisions],
    }
