"""Deciding conflicts over HTTP, on the private listener: what ``holdfast conflicts`` does, for consoles and scripts.

The listener has no tokens: whoever reaches it may decide, so keep it private. A request that changes something must say
that its body is JSON; a page in somebody's browser cannot, without being asked for permission first.
"""

from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from pydantic import BaseModel, ConfigDict, StringConstraints

from holdfast.ingest.holds import Holds
from holdfast.ingest.manifest import ConflictManifest
from holdfast.ingest.quarantine import conflicts
from holdfast.ingest.resolutions import Decision, Resolution, Resolutions, find_by_hash
from holdfast.server import openapi
from holdfast.server.answers import Answers
from holdfast.server.faults import Fault
from holdfast.server.patience import deciding, reading
from holdfast.server.service import Service

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000)]

LIST: dict[str, Any] = {"responses": openapi.refusals("bad_request", *openapi.STORE)}
SHOW: dict[str, Any] = {"responses": openapi.refusals("bad_request", "not_found", *openapi.STORE)}


async def _said_to_be_json(request: Request) -> None:
    """Asked before the body is looked at: whoever forgot to say so would hear of parameters that are all there."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Fault(
            "bad_request", "the body is not said to be JSON", remedy="send the header Content-Type: application/json"
        )


DECIDE: dict[str, Any] = {
    "responses": openapi.refusals(
        *("bad_request", "not_found", "refused", "conflict", "length_required", "too_large", "outcome_unknown"),
        *openapi.STORE,
    ),
    "dependencies": [Depends(_said_to_be_json)],
}


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


def add_conflict_routes(app: FastAPI, service: Service, answers: Answers) -> None:
    resolutions = Resolutions(service.store, service.ambient)
    holds = Holds(service.store, service.ambient)

    @app.get("/api/v1/conflicts", **LIST)
    async def identity_conflicts(
        agent: Annotated[str | None, Query(description="Only those of this agent.")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000, description="At most so many.")] = 100,
    ) -> Response:
        """Identity conflicts on record, by agent, boot and sequence number."""
        found: list[dict[str, Any]] = []
        async with reading(service):
            async for conflict in conflicts(service.store, agent_id=agent):
                found.append({"quarantine_manifest_key": conflict.key, **conflict.document()})
                if len(found) >= limit:
                    break
        return answers.document({"conflicts": found, "truncated": len(found) >= limit})

    @app.get("/api/v1/conflicts/{sha256}", **SHOW)
    async def show(sha256: str) -> Response:
        """One conflict, by the hash of its submitted bytes or the first characters of it, with every decision."""
        async with reading(service):
            conflict = await find_by_hash(service.store, sha256)
            decisions = await resolutions.of(conflict.identity, conflict.submitted_frame_sha256)
        return answers.document(_document(conflict, decisions))

    @app.post("/api/v1/conflicts/{sha256}/resolve", **DECIDE)
    async def resolve(sha256: str, wish: Wish) -> Response:
        """Decide a conflict, on record: existing_is_authoritative, which is final, or quarantine_identity."""
        async with reading(service):
            conflict = await find_by_hash(service.store, sha256)
        identity, submitted = conflict.identity, conflict.submitted_frame_sha256
        async with deciding(service):
            decisions = await resolutions.decide(identity, submitted, wish.resolution, by=wish.by, why=wish.why)
            if wish.resolution is Resolution.QUARANTINE_IDENTITY:
                await holds.hold(identity.agent_id, identity.boot_id, by=wish.by, why=wish.why)
                await service.holds.refresh()
        return answers.document(_document(conflict, decisions))

    @app.get("/api/v1/holds", **LIST)
    async def list_holds() -> Response:
        """Agents and boots in quarantine, and those that were."""
        async with reading(service):
            found = await holds.all()
        return answers.document({"holds": [each.document() for each in found]})

    @app.post("/api/v1/holds/lift", **DECIDE)
    async def lift(lifting: Lifting) -> Response:
        """Let collectors take batches of a held agent and boot again."""
        async with deciding(service):
            lifted = await holds.lift(lifting.agent_id, lifting.boot_id, by=lifting.by, why=lifting.why)
            await service.holds.refresh()
        return answers.document(lifted.document())


def _document(conflict: ConflictManifest, decisions: tuple[Decision, ...]) -> dict[str, Any]:
    return {
        "quarantine_manifest_key": conflict.key,
        **conflict.document(),
        "decisions": [each.document() for each in decisions],
    }
