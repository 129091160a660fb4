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
            "agent parked list --queue {queue}",
            "agent parked list --queue {folder}/none",
            "agent --collector https://a:1",
            "agent parked show 12-17 --queue {queue}",
        ],
    ),
    "audit": (
        "telemetry",
        [
            "audit list",
            "audit show",
            "audit run --master local",
            "audit show nothing",
            "audit run --scope runs --scope bus --master local",
            "audit run --scope wires --master local",
            "audit run --inventory nowhere.json --master local",
            "audit run --html no/such/folder/x.html --master local",
        ],
    ),
    "authority": (
        "telemetry",
        [
            "authority show",
            "authority alias --same-bucket",
            "authority promote --why 'the bucket is gone' --original-is-out-of-service",
            "authority promote --why 'a test' --original-is-out-of-service --acceptance magic",
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
            "conflicts resolve 25b776 --existing-is-authoritative --why 'a clone' --by ada",
            "conflicts show 25b776",
            "conflicts resolve 25b776 --why 'a test'",
            "conflicts show abcdef",
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
            'events publish order.placed \'{"order_id": "other"}\' --key o9',
            "events list --type nothing",
            "events list --status ackd",
            "events list --namespace nothing",
            "events sessions --namespace nothing",
            "events stats --namespace nothing",
            "events dead-letters drop",
            "events dead-letters drop f7ad61ff-583e-e7b6-5b3f-9d6f99029742",
            "events replay --type order.billed",
            "events replay --type nothing",
            "events replay",
            "events publish order.placed {",
            "events publish order.placed []",
            "events publish order.placed --namespace a/b",
        ],
    ),
    "gc": ("telemetry", ["gc plan", "gc run --apply", "gc history", "gc show nothing"]),
    "logs": (
        "telemetry",
        [
            "logs search --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z --limit 3",
            "logs search nothing --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z",
            "logs search x --severity loud",
            "logs search %",
        ],
    ),
    "metrics": (
        "telemetry",
        [
            "metrics list --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z",
            "metrics labels load --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z",
            "metrics query load --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z --step 1h --total",
            "metrics query load --since 2026-09-21T14:00:00Z --until 2026-09-21T15:00:00Z --step 1h --plot",
            "metrics query laod --since 2026-09-21T14:00:00Z --until 2026-09-21T16:00:00Z",
            "metrics query load --step 1x",
            "metrics query load --where host",
            "metrics query load --where 'host=~('",
            "metrics query load --total --by host",
            "metrics labels nothing",
            "metrics list --since soon",
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
            "onto export Customer {folder}/customers.csv",
            "onto migrate tests.golden.story:CustomerV2",
            "onto import tests.golden.story:CustomerV2 {folder}/customers.csv --by ada",
            "onto revert 13",
            "onto erase Customer c7",
            "onto schema drop Product",
            "onto init",
            "onto init",
            "onto commits list --before 3 --limit 1",
            "onto commits diff 0 1",
            "onto commits diff 4 3",
            "onto commits show 99",
            "onto schema history Nothing",
            "onto changes --type Custmer",
            "onto migrate nothing",
            "onto migrate tests.golden.story:BEGAN_NS",
            "onto migrate tests.golden.story:CustomerV2 --apply",
        ],
    ),
    "pipeline": (
        "telemetry",
        [
            "pipeline status",
            "pipeline history",
            "pipeline plan",
            "pipeline run reconcile --master local",
            "pipeline compact --master local",
            "pipeline run --since 1h --until 2h --master local",
            "pipeline plan --since 1h --until 2h",
            "pipeline run --every 0s --master local",
            "pipeline run --every 1m --full",
            "pipeline run --metrics 127.0.0.1:0 --master local",
            "pipeline run --deep",
            "pipeline run audit --scope everything",
            "pipeline run audit --deep --every 1h",
            "pipeline run audit --since 1h",
            "pipeline run audit --inventory x",
            "pipeline run reconcile --settle 1m",
            "pipeline run --conf spark.a=b --master local",
            "pipeline run recon",
            "pipeline run --master nowhere",
            "pipeline run --conf speculation --master local[1]",
            "pipeline run --agent one",
            "pipeline run --since yesterday",
            "pipeline run --events missing --master local",
            "pipeline history rolup",
        ],
    ),
    "policy": (
        "",
        [
            "policy --store s3://bucket/prefix --document reader",
            "policy --store s3://bucket --provider none",
            "policy --store s3://bucket --document none",
            "policy --store s3://bucket --sse none",
            "policy --store s3://bucket --object-lock COMPLIANCE",
            "policy check",
            "policy check --role king",
        ],
    ),
    "runs": (
        "runs",
        [
            "runs list",
            "runs list --status success",
            "runs list --status failed",
            "runs list --workflow nap",
            "runs list --tag nothing",
            "runs list --limit 2",
            "runs list --until 2020-01-01",
            "runs list --since 1h",
            "runs list --since yesterday",
            "runs list --status succes",
            "runs status failed",
            "runs status suspended",
            "runs status nothing",
            "runs status a/b",
            "runs dump completed",
            "runs dump completed --offset 4",
            "runs tail completed",
            "runs tail completed --lines 2",
            "runs stats",
            "runs fork completed --from-offset 2 --new-run-id fork-1",
            "runs cancel sleeping --reason 'a test'",
            "runs retry failed",
            "runs resume suspended approval '{\"approved\": true}' --key k",
            "runs delete completed",
            "runs delete --older-than 1d --dry-run",
            "runs reindex",
            "runs status fork-1",
            "runs status completed",
            "runs fork failed",
            "runs fork failed --from-offset 99",
            "runs fork failed --from-step nothing",
            "runs fork failed --from-offset 1 --new-run-id parent",
            "runs cancel completed",
            "runs cancel parent --now",
            "runs cancel parent",
            "runs retry parent",
            "runs resume suspended approval '{approved: yes}'",
            "runs resume suspended a/b",
            "runs resume nothing approval",
            "runs delete suspended cancelled",
            "runs delete suspended --force",
            "runs delete",
            "runs delete parent --yes",
            "runs delete --older-than 1d --force",
            "runs delete --older-than month",
            "runs delete --older-than 1d --status open",
        ],
    ),
    "sql": (
        "ontology",
        [
            'sql "select id, tier from Customer order by id"',
            'sql "select nothing from Customer"',
            'sql "select * from Custmer"',
            'sql "select id, price, sizes, photo from Product order by price desc" --as-of 1',
            'sql "select id, commit_id, retracted from Customer__history order by 2, 1 limit 3" --format csv',
            'sql "select 1" --as-of nothing',
            'sql "select 1" --output rows.txt',
            'sql "select 1" --output rows.csv --format json',
            'sql "select 1" --output {folder}/nowhere/rows.csv',
        ],
    ),
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
    out, err = stdout.getvalue(), stderr.getvalue()
    found: dict[str, Any] = {"code": code} if code else {}
    if as_json:
        documents = [json.loads(each) if each == "null" or each[0] in "[{" else each for each in out.splitlines()]
        found["json"] = documents[0] if len(documents) == 1 else documents
        found["error"] = json.loads(err)["error"] if err else {}
    else:
        found["text"] = out.splitlines()
        found["notes"] = [each for each in err.splitlines() if not each.startswith(("error: ", "hint: "))]
        # An error is the same in both forms, which is a rule of the command as a whole: see test_main.
    absent = [name for name, value in found.items() if (value == [] and (code or name == "notes")) or value == {}]
    return {name: _steady(value, names) for name, value in found.items() if name not in absent}


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
            shown_here = printed(line, names, stdout=Terminal()).get("text", [])
            words = re.sub(r"\x1b\[[0-9;]*m", " ", "\n".join(shown_here)).split()
            wanted = " ".join(golden[f"{number}: {line}"].get("text", [])).split()
            assert [word for word in wanted if word not in words] == []


MAY_BE_FIRST = ("events publish", "onto import", "onto init", "onto migrate", "worker")
"""Commands that may write to a new store."""


def readers() -> Iterator[str]:
    """The first line of each command that has nothing to read in a new store."""
    typed = [line for kind, lines in STORIES.values() if kind not in ("", "queue") for line in lines]
    for path, _ in all_commands():
        first = next((line for line in typed if f"{line} ".startswith(f"{path} ")), None)
        if first is not None and path.count(" ") and not path.startswith(MAY_BE_FIRST):
            yield first


@pytest.mark.parametrize("line", dict.fromkeys(readers()))
def test_a_command_that_only_reads_finds_a_mistyped_directory(line: str, tmp_path: Path) -> None:
    names = {"folder": str(tmp_path), "queue": "", "stored": ""}
    missing = tmp_path / "mistyped"
    with mock.patch.dict("os.environ", {"HOLDFAST_STORE": f"file:{missing}"}):
        found = printed(line, names, as_json=True)
    assert (found["code"], found["error"]["message"]) == (4, "no store at file:FOLDER/mistyped")
    assert not missing.exists()


if __name__ == "__main__":
    for name in sys.argv[1:] or STORIES:
        with tempfile.TemporaryDirectory() as made:
            text = json.dumps(shown(name, Path(made)), indent=1, ensure_ascii=False)
        (GOLDEN / "cli" / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
