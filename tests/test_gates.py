"""Every lint gate is run for real, with the project's own configuration, on a sample that it must refuse."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SAMPLES

BIN = Path(sys.executable).parent
WRONG_IMPORTS = [
    ("base", "holdfast.objects"),
    ("bus", "holdfast.runs"),
    ("sim", "holdfast.server"),
    ("runs", "obstore"),
    ("bus", "duckdb"),
    ("platform", "pyspark"),
    ("cli", "uvicorn"),
    ("telemetry", "fastapi"),
    ("runs/journal", "holdfast.runs.engine"),
    ("ontology/types", "holdfast.ontology.commit"),
    ("ontology/query/cache", "holdfast.ontology.query.engine"),
    ("ontology/format/layout", "holdfast.ontology.format.manifest"),
    ("telemetry/frame", "holdfast.telemetry.accept"),
]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def expected_codes(sample: Path) -> set[tuple[int, str]]:
    """Lines of a sample that end in a comment with the code which must be reported for them."""
    lines = enumerate(sample.read_text(encoding="utf-8").splitlines(), 1)
    found = {(number, match.group(1)) for number, line in lines if (match := re.search(r"#\s+([\w-]+)$", line))}
    assert found
    return found


def test_ruff_bans_ambient_calls_outside_their_homes_and_checks_rules_and_format(tmp_path: Path) -> None:
    # The samples stand where real code stands: the configuration treats tests more gently.
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    places = {"ambient.py": "src/holdfast/run.py", "various.py": "src/holdfast/x.py"}
    homes = [f"src/holdfast/base/{home}.py" for home in ("clock", "ids", "aio")]
    for sample, place in [*places.items(), *(("ambient.py", home) for home in homes)]:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SAMPLES / "ruff" / sample, tmp_path / place)
    result = run(BIN / "ruff", "check", "--no-cache", "--output-format=json", "src", cwd=tmp_path)
    found: dict[str, set[tuple[int, str]]] = {place: set() for place in (*places.values(), *homes)}
    for problem in json.loads(result.stdout):
        found[str(Path(problem["filename"]).relative_to(tmp_path))].add((problem["location"]["row"], problem["code"]))
    for sample, place in places.items():
        assert expected_codes(SAMPLES / "ruff" / sample) <= found[place]
    assert "TID251" not in {code for home in homes for _, code in found[home]}
    shutil.copy(SAMPLES / "ruff" / "unformatted.py", tmp_path)
    assert run(BIN / "ruff", "format", "--no-cache", "--check", "unformatted.py", cwd=tmp_path).returncode == 1


@pytest.mark.soak
def test_mypy_is_strict(tmp_path: Path) -> None:
    sample = SAMPLES / "mypy" / "strict.py"
    shutil.copy(sample, tmp_path)  # among the tests it would be treated more gently
    result = run(
        BIN / "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", "cache", sample.name, cwd=tmp_path
    )
    found = {
        (int(match.group(1)), match.group(2))
        for match in re.finditer(r":(\d+): error: .*\[([\w-]+)\]$", result.stdout, re.MULTILINE)
    }
    assert expected_codes(sample) <= found, result.stdout


def test_every_import_contract_can_break(tmp_path: Path) -> None:
    """Every module of the project, empty but for a wrong import, under the real contracts."""
    package, source = tmp_path / "holdfast", ROOT / "src" / "holdfast"
    for path in source.rglob("*.py"):
        empty = package / path.relative_to(source)
        empty.parent.mkdir(parents=True, exist_ok=True)
        empty.touch()
    ignored = (ROOT / ".importlinter").read_text(encoding="utf-8")
    for importer, imported in re.findall(r"^ +(holdfast[^ *]+) -> (holdfast[^ *]+)$", ignored, re.MULTILINE):
        with (tmp_path / f"{importer.replace('.', '/')}.py").open("a") as file:  # an import that is ignored must exist
            file.write(f"import {imported}\n")
    wrong = {room: room if (package / f"{room}.py").exists() else f"{room}/wrong" for room, _ in WRONG_IMPORTS}
    for room, module in WRONG_IMPORTS:
        with (package / f"{wrong[room]}.py").open("a") as file:
            file.write(f"def late():\n    import {module}\n")
    shutil.copy(ROOT / ".importlinter", tmp_path)
    report = run(BIN / "lint-imports", "--no-cache", cwd=tmp_path)
    verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)\b", report.stdout, re.MULTILINE))
    assert set(verdicts) == set(re.findall(r"^name = (.+)$", ignored, re.MULTILINE)), report.stdout + report.stderr
    assert set(verdicts.values()) == {"BROKEN"}, verdicts
    for room, module in WRONG_IMPORTS:
        assert f"holdfast.{wrong[room].replace('/', '.')} -> {module} " in report.stdout
