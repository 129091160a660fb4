"""mypy and pyright understand declared types: the constructor, the value on an instance, the expression on the class.

Both check the same two files: one in which nothing is wrong, and one in which every wrong line must be found and no
other.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SAMPLES

pytestmark = pytest.mark.soak  # two type checkers from nothing; `make types` checks typed.py each time
BIN = Path(sys.executable).parent
GOOD = ROOT / "tests" / "unit" / "ontology" / "typed.py"
BAD = SAMPLES / "typing" / "ontology.py"

Found = dict[str, dict[int, str]]


def expected(column: int) -> dict[int, str]:
    """The codes at the ends of lines; each line has one for each checker."""
    lines = enumerate(BAD.read_text(encoding="utf-8").splitlines(), 1)
    codes = {
        number: match.groups()[column] for number, line in lines if (match := re.search(r"  # (\S+) (\S+)$", line))
    }
    assert codes
    return codes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outside of the tests, which the configuration treats more gently."""
    made = tmp_path_factory.mktemp("typing")
    shutil.copy(GOOD, made / "good.py")
    shutil.copy(BAD, made / "bad.py")
    return made


@pytest.fixture(scope="module")
def by_mypy(folder: Path) -> Found:
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", "cache", "--follow-imports", "silent"]
    result = subprocess.run(
        [BIN / "mypy", *config, "good.py", "bad.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    found: Found = {"good.py": {}, "bad.py": {}}
    for name, line, code in re.findall(r"^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", result.stdout, re.MULTILINE):
        found[name][int(line)] = code
    assert re.search(r"^Found \d+ errors|^Success", result.stdout, re.MULTILINE), result.stdout + result.stderr
    return found


@pytest.fixture(scope="module")
def by_pyright(folder: Path) -> Found:
    settings = {
        "typeCheckingMode": "standard",
        "venvPath": str(BIN.parent.parent),
        "venv": BIN.parent.name,
        "extraPaths": [str(ROOT / "src")],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    result = subprocess.run(
        [BIN / "basedpyright", "--outputjson", "good.py", "bad.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    found: Found = {"good.py": {}, "bad.py": {}}
    for problem in json.loads(result.stdout)["generalDiagnostics"]:
        if problem["severity"] == "error":
            line = problem["range"]["start"]["line"] + 1
            found[Path(problem["file"]).name][line] = problem.get("rule", problem["message"])
    return found


def test_mypy_accepts_what_is_right_and_finds_what_is_wrong(by_mypy: Found) -> None:
    assert by_mypy == {"good.py": {}, "bad.py": expected(0)}


def test_pyright_accepts_what_is_right_and_finds_what_is_wrong(by_pyright: Found) -> None:
    assert by_pyright == {"good.py": {}, "bad.py": expected(1)}
