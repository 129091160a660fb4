"""What every command prints about the golden stores, for people and for programs, as one JSON document for each noun.

A command that prints something else than before fails here. If the change is meant, ``python -m
tests.unit.cli.test_golden [NOUN]...`` writes the documents anew: read their diff. Clock, ids and random numbers are
fixed; what depends on the machine, such as requests and folders, is replaced by a placeholder.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.base.ids import Ambient
from holdfast.cli.main import run
from tests.golden import story
from tests.unit.cli.test_main import all_commands

GOLDEN = Path(__file__).parents[2] / "golden"
LATER_NS = story.BEGAN_NS + 30 * 86_400 * story.SECOND

STORIES: dict[str, tuple[str, list[str]]] = {
    "agent": (
        "queue",
        [
            "agent parked list --queue {queue}",
            "agent parked show 12-17 --queue {queue}",
            "agent parked drop 12-17 --queue {queue} --yes",
            "agent parked show 12-17 --queue {queue}",
        ],
    ),
    "audit": ("telemetry", ["audit list", "audit show", "audit run --master inline", "audit show nothing"]),
    "authority": (
        "telemetry",
        [
            "authority show",
            "authority alias --same-bucket",
            "authority promote --why 'the bucket is gone' --original-is-out-of-service",
            "authority show",
        ],
    ),
    "conflicts": (
        "telemetry",
        [
            "conflicts list",
            "conflicts show 25b776",
            "conflicts holds",
            "conflicts resolve 25b776 --quarantine-identity --why 'a test' --by ada",
            "conflicts holds",
            "conflicts list --unresolved",
            "conflicts lift web-1 boot-a --why 'a test' --by ada",
        ],
    ),
    "events": (
        "bus",
        [
            "events list",
            "events list --status dead_lettered",
            "events inspect 98b9595e-5ccd-fc62-8d2e-5c71fe7996aa",
            "events inspect nothing",
            "events handlers",
            "events stats",
            "events sessions",
            "events namespaces",
            "events tail --once",
            "events dead-letters list",
            "events dead-letters list --namespace other",
            'events publish order.placed \'{"order_id": "o9"}\' --key o9',
            'events publish order.placed \'{"order_id": "o9"}\' --key o9',
            "events replay f7ad61ff-583e-e7b6-5b3f-9d6f99029742",
            "events dead-letters replay 98b9595e-5ccd-fc62-8d2e-5c71fe7996aa",
            "events dead-letters drop --all",
            "events cleanup --dry-run",
            "events retire thank",
        ],
    ),
    "gc": ("telemetry", ["gc plan", "gc run --apply", "gc history", "gc show nothing"]),
    "logs": ("telemetry", ["logs search disk --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z --limit 3"]),
    "metrics": (
        "telemetry",
        [
            "metrics list --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z",
            "metrics labels load --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z",
            "metrics query load --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z --step 1h --total",
            "metrics query load --since 2026-09-21T14:00:00Z --until 2026-09-21T15:00:00Z --step 1h --plot",
        ],
    ),
    "onto": (
        "ontology",
        [
            "onto info",
            "onto commits list --limit 3",
            "onto commits show 4",
            "onto commits diff 3 4",
            "onto lock show",
            "onto lock break",
            "onto verify --deep",
            "onto index verify",
            "onto index repair",
            "onto compact Customer",
            "onto changes --since 13",
            "onto tag list",
            "onto tag set before 13 --by ada --note 'a test'",
            "onto tag delete before",
            "onto schema export Product",
            "onto schema history Customer",
            "onto query Customer --where 'tier == \"gold\"' --columns id,tier",
            "onto query Custmer",
            "onto export Customer {folder}/customers.csv",
            "onto migrate tests.golden.story:CustomerV2",
            "onto import tests.golden.story:CustomerV2 {folder}/customers.csv --by ada",
            "onto revert 13",
            "onto erase Customer c7",
            "onto schema drop Product",
            "onto init",
        ],
    ),
    "pipeline": (
        "telemetry",
        [
            "pipeline status",
            "pipeline history",
            "pipeline plan",
            "pipeline run reconcile --master inline",
            "pipeline compact --master inline",
        ],
    ),
    "policy": ("", ["policy --store s3://bucket/prefix --document reader", "policy check"]),
    "runs": (
        "runs",
        [
            "runs list",
            "runs list --status success",
            "runs list --status failed",
            "runs status failed",
            "runs status suspended",
            "runs status nothing",
            "runs dump completed",
            "runs tail completed",
            "runs stats",
            "runs fork completed --from-offset 2 --new-run-id fork-1",
            "runs cancel sleeping --reason 'a test'",
            "runs retry failed",
            "runs resume suspended approval '{\"approved\": true}' --key k",
            "runs delete completed",
            "runs delete --older-than 1d --dry-run",
            "runs reindex",
        ],
    ),
    "sql": ("ontology", ['sql "select id, tier from Customer order by id"', 'sql "select nothing from Customer"']),
    "tokens": (
        "",
        [
            "tokens add --file {folder}/tokens.toml --agents web-*,db-1 --note ada --expires-in 90d",
            "tokens list --file {folder}/tokens.toml",
            "tokens revoke nothing --file {folder}/tokens.toml",
        ],
    ),
    "worker": ("bus", ["worker tests.golden.story:nothing", "worker tests.golden.story"]),
}
"""By noun: which golden store a copy is made of, and the lines that are typed in their order."""

ELSEWHERE = {
    "collector": "test_collector.py",
    "config": "test_main.py",
    "demo": "test_demo.py",
    "doctor": "test_doctor.py",
    "pipeline load": "test_pipeline_bulk.py",
    "sim": "test_sim.py",
    "tokens revoke": "tests/unit/server/test_tokens.py",
}
"""Commands that are shown by tests of their own: they serve, take long, or print what changes often."""

NEW = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8,64}\b")
"""Ids and hashes. Those that the golden store does not have are made by the command."""
NOW = re.compile(r"2026-(?:10-2|11-)\d+[T ][\d:.+Z-]+\d|2026102\d?T\d+")
MEASURED = re.compile(r"^spent: .*|^[\d.,]+ s, [\d.,]+ runs/s.*")
MEASURES = {"requests", "dollars", "wall_s", "runs_per_s", "operations_per_s"}


@contextlib.contextmanager
def on_a_copy(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """A copy of one golden store, on a clock that stands a month after the story that it tells."""
    store = Path(shutil.copytree(GOLDEN / "stores" / kind, folder / kind)) if kind else folder
    shared, _ = story.ambient(7, LATER_NS)
    environ = {"HOLDFAST_STORE": f"file:{store / 'store'}", "COLUMNS": "120", "USER": "tester", "LOGNAME": "tester"}
    with mock.patch.object(Ambient, "system", return_value=shared), mock.patch.dict("os.environ", environ):
        files = sorted(each for each in store.rglob("*") if each.is_file())
        stored = "\n".join([*map(str, files), *(each.read_bytes().decode(errors="replace") for each in files)])
        for each in files:
            os.utime(each, ns=(story.BEGAN_NS, story.BEGAN_NS))
        yield {"folder": str(folder), "queue": str(store / "queue"), "stored": stored}


def printed(
    line: str, names: dict[str, str], *, as_json: bool = False, stdout: io.StringIO | None = None
) -> dict[str, Any]:
    for name in ("queue", "folder"):
        line = line.replace(f"{{{name}}}", names[name])
    stdout, stderr = stdout or io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = run([*shlex.split(line), *(["--json"] if as_json else [])])
    found: dict[str, Any] = {"code": code} if code else {}
    if as_json:
        documents = [_steady(json.loads(each), names) for each in stdout.getvalue().splitlines()]
        found["json"] = documents[0] if len(documents) == 1 else documents
        if stderr.getvalue():
            found["error"] = _steady(json.loads(stderr.getvalue())["error"], names)
    else:
        found["text"] = [_steady(each, names) for each in stdout.getvalue().splitlines()]
        if stderr.getvalue():
            found["notes"] = [_steady(each, names) for each in stderr.getvalue().splitlines()]
    return found


def _steady(value: Any, names: dict[str, str]) -> Any:
    match value:
        case str():
            text = MEASURED.sub("MEASURED", NOW.sub("NOW", value.replace(names["folder"], "FOLDER")))
            return NEW.sub(lambda found: found[0] if found[0] in names["stored"] else "NEW", text)
        case int() if value > LATER_NS:
            return "NOW"
        case dict():
            return {name: "MEASURED" if name in MEASURES else _steady(each, names) for name, each in value.items()}
        case list():
            return [_steady(each, names) for each in value]
    return value


def shown(noun: str, folder: Path) -> dict[str, Any]:
    """The lines of a noun with what each prints as text and, on a second copy, as JSON."""
    kind, lines = STORIES[noun]
    found: dict[str, Any] = {}
    for as_json in (True, False):
        place = folder / ("json" if as_json else "text")
        place.mkdir()
        with on_a_copy(kind, place) as names:
            for number, line in enumerate(lines, 1):
                found.setdefault(f"{number}: {line}", {}).update(printed(line, names, as_json=as_json))
    return found


@pytest.mark.parametrize("noun", STORIES)
def test_a_noun_prints_what_its_golden_document_says(noun: str, tmp_path: Path) -> None:
    golden = json.loads((GOLDEN / "cli" / f"{noun}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(shown(noun, tmp_path))) == golden


def test_every_command_is_shown() -> None:
    typed = [line for _, lines in STORIES.values() for line in lines] + list(ELSEWHERE)
    leaves = [path for path, command in all_commands() if not getattr(command, "commands", None)]
    leaves = [path for path in leaves if path.partition(" ")[0] not in ELSEWHERE]
    assert [path for path in leaves if not any(f"{line} ".startswith(f"{path} ") for line in typed)] == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("noun", STORIES)
def test_no_word_is_broken_on_a_terminal_of_60_columns(noun: str, tmp_path: Path) -> None:
    """Ids, keys and times stay whole, so that they can be copied."""
    golden = json.loads((GOLDEN / "cli" / f"{noun}.json").read_text(encoding="utf-8"))
    kind, lines = STORIES[noun]
    with on_a_copy(kind, tmp_path) as names, mock.patch.dict("os.environ", {"COLUMNS": "60"}):
        for number, line in enumerate(lines, 1):
            shown_here = printed(line, names, stdout=Terminal())["text"]
            words = re.sub(r"\x1b\[[0-9;]*m", " ", "\n".join(shown_here)).split()
            wanted = " ".join(golden[f"{number}: {line}"]["text"]).split()
            assert [word for word in wanted if word not in words] == []


MAY_BE_FIRST = ("events publish", "onto import", "onto init", "onto migrate", "worker")
"""Commands that may write to a new store."""


READERS = [
    line
    for kind, lines in STORIES.values()
    if kind not in ("", "queue")
    for line in dict.fromkeys(lines)
    if not line.startswith(MAY_BE_FIRST)
]


@pytest.mark.parametrize("line", READERS)
def test_a_command_that_only_reads_finds_a_mistyped_directory(line: str, tmp_path: Path) -> None:
    names = {"folder": str(tmp_path), "queue": "", "stored": ""}
    missing = tmp_path / "mistyped"
    with mock.patch.dict("os.environ", {"HOLDFAST_STORE": f"file:{missing}"}):
        found = printed(line, names)
    assert (found["code"], found["notes"][0]) == (4, "error: no store at file:FOLDER/mistyped")
    assert not missing.exists()


if __name__ == "__main__":
    for name in sys.argv[1:] or STORIES:
        with tempfile.TemporaryDirectory() as made:
            text = json.dumps(shown(name, Path(made)), indent=1, ensure_ascii=False)
        (GOLDEN / "cli" / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
