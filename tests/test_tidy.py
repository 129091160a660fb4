"""The shape of the project is a test. Every rule is also run on a bad sample, which proves that it can fail."""

import re
import tomllib

import pytest

from tests.tidy.rules import FOLDER_MODULES, LARGE_FOLDERS, MODULE_LINES, RULES, Rule, large_folders
from tests.tidy.source import Source
from tests.tidy.tree import REGISTRY_HOSTS, ROOT, SAMPLES, leaks, project_files

TIDY_SAMPLES = SAMPLES / "tidy"
MARK = "  # FIRES"
by_name = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def covered_files() -> list[str]:
    return [name for name in project_files() if not name.startswith("tests/bad_samples/")]


@pytest.fixture(scope="module")
def findings() -> dict[str, list[str]]:
    """By rule; every file is read and parsed once for all of them."""
    found: dict[str, list[str]] = {rule.name: [] for rule in RULES}
    for name in covered_files():
        if rules := [rule for rule in RULES if rule.applies(name)]:
            source = Source(name, (ROOT / name).read_text(encoding="utf-8"))
            for rule in rules:
                found[rule.name] += [f"{name}:{each.line}: {each.message}" for each in rule.find(source)]
    return found


@by_name
def test_project_follows_rule(rule: Rule, findings: dict[str, list[str]]) -> None:
    assert not findings[rule.name], "\n".join(findings[rule.name])


@by_name
def test_rule_fires_on_its_bad_sample_and_nowhere_else_in_it(rule: Rule) -> None:
    sample = bad_sample(rule.name)
    expected = {number for number, line in enumerate(sample.splitlines(), 1) if line.endswith(MARK)}
    assert expected
    assert {finding.line for finding in rule.find(Source(rule.name, sample.replace(MARK, "")))} == expected


def bad_sample(name: str) -> str:
    if name == "long_module":
        return "x = 1\n" * MODULE_LINES + "x = 1  # FIRES\n"
    return (TIDY_SAMPLES / f"{name}.py").read_text(encoding="utf-8")


@by_name
def test_rule_covers_files_of_the_project(rule: Rule) -> None:
    """A rule over a folder that does not exist cannot fail."""
    assert [name for name in covered_files() if rule.applies(name)]


def test_every_sample_belongs_to_a_rule() -> None:
    assert {path.stem for path in TIDY_SAMPLES.glob("*.py")} <= {rule.name for rule in RULES}


def test_folders_are_small_or_named() -> None:
    found = large_folders(covered_files(), LARGE_FOLDERS)
    assert not found, "\n".join(found)


def test_a_large_folder_and_a_needless_exception_are_found() -> None:
    full = [f"src/full/{n}.py" for n in range(FOLDER_MODULES)] + ["src/full/__init__.py"]
    large = [f"src/large/{n}.py" for n in range(FOLDER_MODULES + 1)]
    assert large_folders(full + large, {"src/large": "why"}) == []
    assert [each.partition(":")[0] for each in large_folders(full + large, {})] == ["src/large"]
    assert [each.partition(":")[0] for each in large_folders(full, {"src/full": "why"})] == ["src/full"]


def test_every_lint_exception_of_ruff_matches_a_file() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["ruff"]["lint"]["per-file-ignores"]
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []


def test_no_file_names_a_registry_host_or_a_machine_path() -> None:
    found: list[str] = []
    for name in project_files():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image or a golden binary: no line of text to read
        found += [f"{name}:{line}: {what}" for line, what in leaks(text)]
    assert not found, "\n".join(found)


def test_a_machine_path_and_a_registry_host_are_found() -> None:
    for folder in ("work", "root", "home"):
        assert leaks(f"open('/{folder}/a-user/file')") == [(1, f"'/{folder}/")]
        assert not leaks(f"src/{folder}/file and https://host/{folder}.html")
    for host in REGISTRY_HOSTS:
        assert leaks(f"first line\nindex-url = https://{host}/simple") == [(2, host)]


def test_planted_faults_of_the_design_exist() -> None:
    """Each row of the table names test files, and classes or tests in them."""
    rows = [
        row
        for row in (ROOT / "design/0008-planted-faults.md").read_text().splitlines()
        if row.startswith("| ") and "`tests/" in row
    ]
    assert len(rows) > 30
    for row in rows:
        text = ""
        for word in re.findall(r"`([^`]+)`", row.split("|")[3]):
            if word.startswith("tests/"):
                text = (ROOT / word).read_text()
            else:
                assert re.search(rf"(class|def) {word}\b", text), f"{word} of {row}"
