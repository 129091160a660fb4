"""Docs cannot drift: examples run, links lead somewhere, the reference names everything there is."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.config import Settings
from holdfast.base.errors import TABLE
from holdfast.bus import event
from holdfast.cli.main import FLAGS, TAKES_VALUE
from holdfast.cli.nouns import NOUNS, load
from tests.tidy.docs import blocks, broken_links, run_examples
from tests.tidy.tree import ROOT, SAMPLES, project_files

PAGES = [name for name in project_files() if name.endswith(".md") and not name.startswith("tests/")]
EXAMPLES = [name for name in PAGES if name.startswith("docs/")]
REFERENCE = ROOT / "docs" / "reference"
SHOWN_ONLY = 3  # blocks of Python in all pages that are shown and not run; keep it small


def reference() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.rglob("*.md")))


SPARK_PAGES = [name for name in EXAMPLES if "pipeline import start" in (ROOT / name).read_text(encoding="utf-8")]
"""In tests/spark, where there is a session."""


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in SPARK_PAGES])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran, shown = examples_run(name, monkeypatch)
    assert ran == shown


def examples_run(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many examples of a page ran, and how many there are to run."""
    ours = {kind: cls for kind, cls in event._registry.items() if cls.__module__.startswith("holdfast.")}
    monkeypatch.setattr(event, "_registry", ours)  # a page is a program of its own; tests have events of these names
    shown = [block for block in blocks((ROOT / name).read_text(encoding="utf-8")) if block.runs]
    return run_examples(ROOT / name), len(shown)


def test_few_examples_are_only_shown() -> None:
    shown = [
        f"{name}:{block.line}"
        for name in EXAMPLES
        for block in blocks((ROOT / name).read_text(encoding="utf-8"))
        if block.info.startswith("python") and not block.runs
    ]
    assert len(shown) <= SHOWN_ONLY, shown


@pytest.mark.parametrize("name", [name for name in EXAMPLES if "/how-to/" in name])
def test_how_tos_teach_nothing_of_the_inner_rooms(name: str) -> None:
    """docs/compatibility.md: public is what packages directly below ``holdfast`` export; ``base`` has nothing."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert re.findall(r"holdfast\.(?:base|server\.\w)[\w.]*", text) == []


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    assert broken_links(ROOT / name, ROOT) == []


def command_paths(command: Any, path: str) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if not children:
        yield path
    for name, child in children.items():
        yield from command_paths(child, f"{path} {name}")


def missing_from(text: str, names: list[str]) -> list[str]:
    """Names that the text does not give in code style, at the start of a code span."""
    return [name for name in names if not re.search(rf"`{re.escape(name)}[`\s=]", text)]


def test_reference_names_every_command_and_global_option() -> None:
    names = [path for noun in NOUNS for path in command_paths(load(noun), f"holdfast {noun.name}")]
    assert names
    assert missing_from(reference(), [*names, *FLAGS, *TAKES_VALUE]) == []


def test_reference_names_every_setting() -> None:
    names = [f"{section}.{key}" for section, model in Settings() for key in type(model).model_fields]
    assert missing_from(reference(), names) == []


def test_reference_has_the_table_of_errors() -> None:
    rows = {
        (kind, int(code), int(status))
        for kind, code, status in re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|", reference(), re.MULTILINE)
    }
    assert rows == {(kind, row.exit_code, row.http_status) for kind, row in TABLE.items()}


def test_public_names_are_those_that_packages_export() -> None:
    section = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8").partition("## Python\n")[2]
    promised = re.findall(r"`(holdfast[.\w]*)`", section.partition("\n## ")[0].partition("Public besides")[0])
    roots = [ROOT / "src/holdfast/__init__.py", *(ROOT / "src/holdfast").glob("*/__init__.py")]
    roots += (ROOT / "src/holdfast").glob("[a-z]*.py")
    exporting = [path for path in roots if "__all__ = [" in path.read_text(encoding="utf-8")]
    names = [str(path.relative_to(ROOT / "src").with_suffix("")).replace("/", ".") for path in exporting]
    assert promised == sorted(name.removesuffix(".__init__") for name in names)


def imported(text: str) -> set[tuple[str, str]]:
    """What the Python blocks of a page import from Holdfast: modules and names."""
    found: set[tuple[str, str]] = set()
    for block in re.findall(r"```python[^\n]*\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "holdfast":
                found |= {(str(node.module), each.name) for each in node.names}
    return found


def test_how_tos_import_public_names_alone() -> None:
    """Those that packages export, and those of the table, which has no others."""
    section = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8").partition("## Python\n")[2]
    public, _, table = section.partition("\n## ")[0].partition("Public besides")
    packages = re.findall(r"`(holdfast[.\w]*)`", public)
    listed = {
        (module, name)
        for module, names in re.findall(r"^\| `(holdfast[.\w]*)` \| (.*) \|$", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    used = set().union(*(imported(path.read_text(encoding="utf-8")) for path in (ROOT / "docs/how-to").glob("*.md")))
    exported = {
        (module, name)
        for module, name in used
        if module in packages
        and (name in getattr(import_module(module), "__all__", ()) or f"{module}.{name}" in packages)
    }
    assert used - exported == listed


class TestTheChecksCanFail:
    @pytest.fixture
    def samples(self) -> Path:
        return SAMPLES / "docs"

    def test_a_failing_example_fails_at_its_line(self, samples: Path) -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            run_examples(samples / "failing.md")
        last = caught.traceback[-1]
        assert Path(str(last.path)).name == "failing.md"
        assert "1 / 0" in (samples / "failing.md").read_text().splitlines()[last.lineno]

    def test_blocks_share_a_namespace_and_a_loop_and_may_await(self, samples: Path) -> None:
        assert run_examples(samples / "running.md") == 3

    def test_broken_links_are_found(self, samples: Path) -> None:
        found = broken_links(samples / "links.md", ROOT)
        assert [problem.partition(": ")[2] for problem in found] == [
            "missing.md does not exist",
            "running.md#no-such-heading has no such heading",
            "../../../../outside.md does not exist",
            "missing.png does not exist",
        ]

    def test_a_missing_name_is_found(self) -> None:
        text = "`holdfast doctor URI` and `s3.region`; holdfast runs without code style"
        assert missing_from(text, ["holdfast doctor", "s3.region"]) == []
        assert missing_from(text, ["holdfast runs", "s3.reg", "holdfast doc"]) == [
            "holdfast runs",
            "s3.reg",
            "holdfast doc",
        ]


def test_the_glossary_is_short() -> None:
    rows = [
        line for line in (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines() if line.startswith("| **")
    ]
    words = [word for row in rows for word in re.findall(r"\*\*[^*]+\*\*", row)]
    assert 40 < len(words) <= 80
