"""pyright understands declared types as mypy does: constructors, values on instances, expressions on classes.

`make types` checks the same two files with mypy: one in which nothing is wrong, and one in which every wrong line
has to be found, since an ignore that is not needed is an error.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SAMPLES

pytestmark = pytest.mark.soak  # a type checker from nothing
BIN = Path(sys.executable).parent
GOOD = ROOT / "tests" / "unit" / "ontology" / "types" / "typed.py"
BAD = SAMPLES / "typing" / "ontology.py"


def test_pyright_accepts_what_is_right_and_finds_what_is_wrong(tmp_path: Path) -> None:
    shutil.copy(GOOD, tmp_path / "good.py")
    shutil.copy(BAD, tmp_path / "bad.py")
    settings = {
        "typeCheckingMode": "standard",
        "enableTypeIgnoreComments": False,
        "venvPath": str(BIN.parent.parent),
        "venv": BIN.parent.name,
        "extraPaths": [str(ROOT / "src")],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    result = subprocess.run(
        [BIN / "basedpyright", "--outputjson", "good.py", "bad.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        (Path(problem["file"]).name, problem["range"]["start"]["line"] + 1, problem.get("rule", problem["message"]))
        for problem in json.loads(result.stdout)["generalDiagnostics"]
        if problem["severity"] == "error"
    }
    lines = enumerate(BAD.read_text(encoding="utf-8").splitlines(), 1)
    expected = {("bad.py", line, rule) for line, text in lines for rule in re.findall(r"  # (report\w+)$", text)}
    assert len(expected) > 30
    assert expected <= found
    assert {each[:2] for each in found} == {each[:2] for each in expected}
