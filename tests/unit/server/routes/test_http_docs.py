"""The page on HTTP says what the applications say of themselves."""

import json
import re
from pathlib import Path

from fastapi import FastAPI

from holdfast.base.config import IngestSection
from holdfast.server.app import ingest_app, private_app
from holdfast.server.errors import REASONS
from tests.tidy.tree import ROOT
from tests.unit.server.server_desk import server_desk

PAGE = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
METHODS = {"get", "post", "put", "delete", "patch", "head", "options"}


def routes(app: FastAPI) -> dict[str, set[int]]:
    """What OpenAPI says."""
    return {
        f"{method.upper()} {path}": {int(status) for status in about["responses"] if status != "default"}
        for path, methods in app.openapi()["paths"].items()
        for method, about in methods.items()
        if method in METHODS
    }


def documented() -> dict[str, tuple[str, set[int]]]:
    rows = re.findall(r"^\| `([A-Z]+ /[^`]*)` \| (\w+) \| [^|]* \| ([\d, ]+) \|$", PAGE, re.MULTILINE)
    return {route: (listener, set(map(int, statuses.split(", ")))) for route, listener, statuses in rows}


async def test_every_route_is_listed_with_its_listener_and_statuses(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        ingest, private = routes(ingest_app(desk.service)), routes(private_app(desk.service))
    expected = {
        route: (
            "both" if route in ingest and route in private else "ingest" if route in ingest else "private",
            statuses,
        )
        for route, statuses in (ingest | private).items()
    }
    assert documented() == expected


async def test_every_parameter_and_metric_is_explained(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        paths = private_app(desk.service).openapi()["paths"]
        parameters, conflicts = (paths[f"/api/v1/{each}"]["get"]["parameters"] for each in ("live", "conflicts"))
        families = {family.name: family.type for family in desk.service.metrics.registry.collect()}
    assert all(f"| `{each['name']}` |" in PAGE for each in parameters)
    section = PAGE.partition("## Conflicts and holds")[2].partition("## ")[0]
    assert all(f"`{each['name']}`" in section for each in conflicts)
    section = PAGE.partition("## Metrics and logs\n")[2].partition("\n## ")[0]
    questions = [
        about["get"] for path, about in paths.items() if path.startswith(("/api/v1/metrics/", "/api/v1/logs/"))
    ]
    assert len(questions) == 4
    assert all(f"`{each['name']}`" in section for about in questions for each in about["parameters"])
    names = [f"{name}_total" if kind == "counter" else name for name, kind in families.items()]
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_every_reason_is_listed_with_its_status() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| `(\w+)` \| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert [(name, int(status), kind, meaning) for name, status, kind, meaning in rows] == [
        (name, row.status, row.kind, row.meaning) for name, row in REASONS.items()
    ]


async def test_a_405_names_the_methods_of_the_path(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        for answer, methods in (
            (await desk.ingest.put("/ingest/v1/batch"), "POST"),
            (await desk.private.post("/api/v1/live"), "GET"),
            (await desk.private.get("/api/v1/holds/lift"), "POST"),
        ):
            assert (answer.status_code, answer.headers["allow"]) == (405, methods)
            assert answer.json()["error"]["reason"] == "method_not_allowed"


async def test_openapi_has_no_dangling_references(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        for client, secured in ((desk.ingest, {"token"}), (desk.private, set())):
            description = (await client.get("/openapi.json")).json()
            parts = description.get("components", {})
            references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description))
            assert set(references) == set(parts.get("schemas", {}))
            operations = [each for path in description["paths"].values() for each in path.values()]
            named = {name for each in operations for wanted in each.get("security", []) for name in wanted}
            assert named == set(parts.get("securitySchemes", {})) == secured


def test_what_an_idle_collector_costs_follows_from_the_settings() -> None:
    page = (ROOT / "docs" / "how-to" / "collectors.md").read_text(encoding="utf-8").partition("## What it costs")[2]
    section, minute_ms = IngestSection(), 60_000
    looks = minute_ms // section.follow_interval_ms
    for said in (
        f"{minute_ms // section.holds_refresh_ms} GETs of the [holds]",
        f"{looks} LISTs",
    ):
        assert said in page
