"""What every command prints about the golden stores, for people and for programs, as one JSON document for each noun.

A command that prints something else than before fails here. If the change is meant, ``python -m
tests.unit.cli.test_golden [NOUN]...`` writes the documents anew: read their diff. To show one more line, first add it
to its document as a key, ``"NUMBER: LINE": {}``. Clock, ids and random numbers are fixed; what depends on the machine,
such as requests and folders, is replaced by a placeholder.
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

STORES = {
    "agent": "queue-2",
    "audit": "telemetry",
    "authority": "telemetry",
    "conflicts": "telemetry",
    "events": "bus",
    "gc": "telemetry",
    "logs": "telemetry",
    "metrics": "telemetry",
    "onto": "ontology",
    "pipeline": "telemetry",
    "policy": "",
    "runs": "runs",
    "sql": "ontology",
    "tokens": "",
    "worker": "bus",
}
"""By noun: which golden store a copy is made of. The lines that are typed are the keys of the golden document."""

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

OUTDATED = ("index", "manifests", "rollup")
"""What an older version derived from batches: it is refused until it is derived again."""

NEW = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8,64}\b")
"""Ids and hashes. Those that the golden store does not have are made by the command."""
NOW = re.compile(r"2026-(?:10-2|11-)\d+[T ][\d:.+Z-]+\d|2026102\d?T\d+")
MEASURED = re.compile(r"^spent: .*|^[\d.,]+ s, [\d.,]+ runs/s.*")
MEASURES = {"requests", "dollars", "wall_s", "runs_per_s", "operations_per_s"}


def golden(noun: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "cli" / f"{noun}.json").read_text(encoding="utf-8"))
    return found


def lines_of(noun: str) -> list[str]:
    return [key.partition(": ")[2] for key in golden(noun)]


@contextlib.contextmanager
def on_a_copy(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """A copy of one golden store, on a clock that stands a month after the story that it tells."""
    store = Path(shutil.copytree(GOLDEN / "stores" / kind, folder / kind)) if kind else folder
    for name in OUTDATED:
        shutil.rmtree(store / "store" / name, ignore_errors=True)
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
    found: dict[str, Any] = {}
    for as_json in (True, False):
        place = folder / ("json" if as_json else "text")
        place.mkdir()
        with on_a_copy(STORES[noun], place) as names:
            for number, line in enumerate(lines_of(noun), 1):
                found.setdefault(f"{number}: {line}", {}).update(printed(line, names, as_json=as_json))
    return found


@pytest.mark.parametrize("noun", STORES)
def test_a_noun_prints_what_its_golden_document_says(noun: str, tmp_path: Path) -> None:
    assert json.loads(json.dumps(shown(noun, tmp_path))) == golden(noun)


def test_every_command_is_shown() -> None:
    typed = [line for noun in STORES for line in lines_of(noun)] + list(ELSEWHERE)
    leaves = [path for path, command in all_commands() if not getattr(command, "commands", None)]
    leaves = [path for path in leaves if path.partition(" ")[0] not in ELSEWHERE]
    assert [path for path in leaves if not any(f"{line} ".startswith(f"{path} ") for line in typed)] == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("noun", STORES)
def test_no_word_is_broken_on_a_terminal_of_60_columns(noun: str, tmp_path: Path) -> None:
    """Ids, keys and times stay whole, so that they can be copied."""
    with on_a_copy(STORES[noun], tmp_path) as names, mock.patch.dict("os.environ", {"COLUMNS": "60"}):
        for key, wide in golden(noun).items():
            shown_here = printed(key.partition(": ")[2], names, stdout=Terminal()).get("text", [])
            words = re.sub(r"\x1b\[[0-9;]*m", " ", "\n".join(shown_here)).split()
            wanted = " ".join(wide.get("text", [])).split()
            assert [word for word in wanted if word not in words] == []


MAY_BE_FIRST = ("events publish", "onto import", "onto init", "onto migrate", "worker")
"""Commands that may write to a new store."""


def readers() -> Iterator[str]:
    """The first line of each command that has nothing to read in a new store."""
    typed = [line for noun, kind in STORES.items() if kind not in ("", "queue-2") for line in lines_of(noun)]
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
    for name in sys.argv[1:] or STORES:
        with tempfile.TemporaryDirectory() as made:
            text = json.dumps(shown(name, Path(made)), indent=1, ensure_ascii=False)
        (GOLDEN / "cli" / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
