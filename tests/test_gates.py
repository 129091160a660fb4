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
DOMAINS = ["runs", "bus", "ingest", "metrics", "ontology"]
ROOMS = ["base", "objects", "sql", *DOMAINS, "platform", "console", "pipeline", "server", "sim", "cli"]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def expected_codes(sample: Path) -> set[tuple[int, str]]:
    """Lines of a sample that end in a comment with the code which must be reported for them."""
    lines = enumerate(sample.read_text(encoding="utf-8").splitlines(), 1)
    found = {(number, match.group(1)) for number, line in lines if (match := re.search(r"#\s+([\w-]+)$", line))}
    assert found
    return found


class TestRuff:
    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        """The sample must stand where real code stands: the configuration treats tests more gently."""
        shutil.copy(ROOT / "pyproject.toml", tmp_path)
        (tmp_path / "src" / "holdfast" / "base").mkdir(parents=True)
        return tmp_path

    def check(self, project: Path, sample: str, target: str) -> set[tuple[int, str]]:
        shutil.copy(SAMPLES / "ruff" / sample, project / target)
        result = run(BIN / "ruff", "check", "--no-cache", "--output-format=json", target, cwd=project)
        return {(problem["location"]["row"], problem["code"]) for problem in json.loads(result.stdout)}

    def test_ambient_time_and_randomness_are_banned(self, project: Path) -> None:
        found = self.check(project, "ambient.py", "src/holdfast/run.py")
        assert expected_codes(SAMPLES / "ruff" / "ambient.py") == {item for item in found if item[1] == "TID251"}

    @pytest.mark.parametrize("home", ["clock", "ids", "aio"])
    def test_ambient_calls_have_their_homes(self, project: Path, home: str) -> None:
        problems = self.check(project, "ambient.py", f"src/holdfast/base/{home}.py")
        assert "TID251" not in {code for _, code in problems}

    def test_families_of_rules_are_switched_on(self, project: Path) -> None:
        assert expected_codes(SAMPLES / "ruff" / "various.py") <= self.check(project, "various.py", "src/holdfast/x.py")

    def test_format_is_checked(self, project: Path) -> None:
        shutil.copy(SAMPLES / "ruff" / "unformatted.py", project / "src")
        assert run(BIN / "ruff", "format", "--no-cache", "--check", "src", cwd=project).returncode == 1


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


class TestImportContracts:
    @pytest.fixture
    def package(self, tmp_path: Path) -> Path:
        """Every room and module of the project, empty, under the real contracts."""
        shutil.copy(ROOT / ".importlinter", tmp_path)
        source = ROOT / "src" / "holdfast"
        for module in [*source.rglob("*.py"), *(source / room / "__init__.py" for room in ROOMS)]:
            empty = tmp_path / "holdfast" / module.relative_to(source)
            empty.parent.mkdir(parents=True, exist_ok=True)
            empty.touch()
        types = tmp_path / "holdfast" / "ontology" / "types" / "fields.py"
        allowed = ("ast", "ends", "exprs", "types")  # imports that a contract ignores have to be there
        types.write_text("".join(f"import holdfast.ontology.filters.{name}\n" for name in allowed))
        return tmp_path / "holdfast"

    def lint(self, package: Path) -> tuple[set[str], str]:
        """The broken contracts, and the report."""
        result = run(BIN / "lint-imports", "--no-cache", cwd=package.parent)
        verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)\b", result.stdout, re.MULTILINE))
        assert len(verdicts) == 9, result.stdout + result.stderr
        broken = {name for name, verdict in verdicts.items() if verdict == "BROKEN"}
        assert result.returncode == bool(broken)
        return broken, result.stdout

    def test_downward_imports_and_sdks_at_home_are_kept(self, package: Path) -> None:
        for room, module in [
            ("cli", "holdfast.sim"),
            ("sim", "holdfast.bus"),
            ("server", "holdfast.console"),
            ("objects", "obstore"),
            ("sql", "duckdb"),
            ("pipeline", "pyspark.sql"),
            ("server", "fastapi"),
        ]:
            (package / room / f"uses_{module.replace('.', '_')}.py").write_text(f"import {module}\n")
        assert self.lint(package)[0] == set()

    def test_wrong_imports_break_their_contracts(self, package: Path) -> None:
        wrong = [
            ("base", "holdfast.objects"),
            ("bus", "holdfast.runs"),
            ("sim", "holdfast.server"),
            ("metrics", "obstore"),
            ("bus", "duckdb"),
            ("platform", "pyspark"),
            ("cli", "uvicorn"),
            ("ingest", "fastapi"),
            ("runs/journal", "holdfast.runs.engine"),
            ("ontology/types", "holdfast.ontology.commit"),
            ("ontology/query/cache", "holdfast.ontology.query.engine"),
            ("ontology/format/parquet", "holdfast.ontology.format.manifest"),
        ]
        for room, module in wrong:
            with (package / room / "wrong.py").open("a") as file:
                file.write(f"def late():\n    import {module}\n")
        broken, report = self.lint(package)
        assert len(broken) == 9
        assert [
            pair for pair in wrong if f"holdfast.{pair[0].replace('/', '.')}.wrong -> {pair[1]} " not in report
        ] == []

    def test_a_room_that_no_layer_names_is_refused(self, package: Path) -> None:
        (package / "basement").mkdir()
        (package / "basement" / "__init__.py").touch()
        assert self.lint(package)[0] == {"Imports only point downward"}
