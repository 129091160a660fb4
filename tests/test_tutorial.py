"""Tutorials are followed word for word: their files are saved, their commands typed, their output compared."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.integration.servers import free_port
from tests.tidy.console import commands, follow, matches
from tests.tidy.docs import blocks
from tests.tidy.tree import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
SESSIONS = [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]


def test_there_are_sessions_to_follow() -> None:
    assert ROOT / "docs" / "tutorial" / "runs.md" in SESSIONS


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_a_session_goes_as_the_page_says(page: Path, tmp_path: Path) -> None:
    assert follow(blocks(page.read_text(encoding="utf-8")), page.name, tmp_path) > 0


README = ROOT / "README.md"


def test_the_readme_goes_as_it_says(tmp_path: Path) -> None:
    """The first run is killed when two steps are recorded rather than after some seconds."""
    page = blocks(README.read_text(encoding="utf-8"))
    program, session = [next(page), next(page)]
    (tmp_path / "stock.py").write_text(program.text, encoding="utf-8")
    first, second = commands(session)
    start = partial(
        subprocess.Popen, [sys.executable, "-u", "stock.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    journal = tmp_path / "data/runs/stock-2026/journal.jsonl"
    with start() as process:
        while not journal.exists() or journal.read_text(encoding="utf-8").count('"type":"step"') < 2:
            assert process.poll() is None
        process.kill()
        assert f"{process.communicate()[0]}Killed" == first.printed
    with start() as process:
        assert process.communicate()[0].strip() == second.printed
    assert follow(page, README.name, tmp_path) == 6


def test_the_collector_and_the_pipeline_of_the_readme_work(tmp_path: Path) -> None:
    telemetry, pipeline, _ = [block for block in blocks(README.read_text(encoding="utf-8")) if block.info == "sh"]
    script = f"set -m\n{telemetry.text}{pipeline.text}wait"
    for port in ("8080", "8081"):
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
    private = re.findall(r"127\.0\.0\.1:\d+", script)[1]
    script = script.replace(" &\n", f" --private {private} &\n", 1)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert "1 batch accepted" in done.stdout
    assert "lmagent_up" in done.stdout
    assert re.search(r"^derive .* success ", done.stdout, re.MULTILINE)
    assert "reconciled through" in done.stdout


class TestTheFollowerCanFail:
    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("```console\n$ echo one\ntwo\n```\n", "the page shows\ntwo\nand it printed\none"),
            ("```console\n$ python -c 'raise SystemExit(3)'\n```\n", "exit code 3"),
            ("```console\n$ python -c 'print(1)'\n```\n", "and it printed\n1"),
            ("```py file=a.py\nimport os\nos.kill(os.getpid(), 9)\n```\n```console\n$ python a.py\n```\n", "Killed"),
        ],
    )
    def test_what_differs_is_named(self, text: str, complaint: str, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match=complaint):
            follow(blocks(text), "page.md", tmp_path)

    def test_what_agrees_passes(self, tmp_path: Path) -> None:
        session = """$ python a.py\nx ...\n$ python -c 'exit("error: no")'\nerror: no\n"""
        text = f"```py file=a.py\nprint('x', 1.5)\n```\n```console\n{session}```\n"
        assert follow(blocks(text), "page.md", tmp_path) == 2

    def test_dots_stand_for_anything(self) -> None:
        assert matches("a ... c\nd", "a b\nb c\nd\n")
        assert not matches("a ... c", "a b")
        assert not matches("a.c", "abc")
