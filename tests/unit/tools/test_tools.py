"""The scripts that run before any Python package is installed, and the lock files that they install from."""

import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.tree import ROOT

NEED = ROOT / "tools" / "need"
JAVA_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
JAVA_11 = "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2"


@dataclass
class Machine:
    """A folder that is the whole PATH: a few utilities, and the programs that a test writes."""

    folder: Path

    def program(self, name: str, body: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def run(self, *command: str | Path) -> "subprocess.CompletedProcess[str]":
        only = {"PATH": str(self.folder)}
        return subprocess.run(command, cwd=self.folder, env=only, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name in ("sh", "sed", "cat", "rm", "cp"):
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    result = Machine(tmp_path)
    result.program("id", "echo 1000")
    return result


def test_java_is_found_or_installed_by_root_or_missing_in_one_clear_line(machine: Machine) -> None:
    # The package lists are empty until they are updated, as on a fresh machine.
    machine.program("apt-get", "case $1 in update) : >new;; install) [ -f new ] && cp spare java;; esac")
    machine.program("spare", JAVA_17)
    machine.program("java", JAVA_11)
    missing = machine.run(NEED, "java")
    assert (missing.returncode, len(missing.stderr.splitlines())) == (1, 1)
    assert missing.stderr.startswith("error: Java 17 or newer was not found and could not be installed here")
    assert not (machine.folder / "new").exists()
    machine.program("id", "echo 0")
    for _ in range(2):
        found = machine.run(NEED, "java")
        assert (found.returncode, found.stdout) == (0, f"{machine.folder / 'java'}\n")


def test_setup_skips_a_python_that_does_not_run(machine: Machine) -> None:
    setup = ROOT / "tools" / "setup"
    machine.program("python3", "exit 127")
    result = machine.run(setup, ".venv")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith("error: no Python 3.11 or newer with the venv module was found")
    machine.program("python3.12", 'case $1 in -m) echo "$@" >log; exit 9;; --version) echo Python 3.12.1;; esac')
    assert machine.run(setup, ".venv").returncode == 9
    assert (machine.folder / "log").read_text() == "-m venv .venv\n"


def test_make_help_lists_every_target() -> None:
    command = ["make", "--no-print-directory", "help"]  # under make itself it would also print the directory
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (help .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert {line.split()[0] for line in listed.splitlines()} == set(phony[1].split())


def locked(name: str) -> dict[str, str]:
    """Version by package; each must have a hash."""
    found = re.findall(r"^(\S+)==(\S+)(?: ;[^\n]*?)? \\\n +--hash=sha256:", (ROOT / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


def test_the_lock_files_satisfy_pyproject() -> None:
    """Else a dependency was changed without `make lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    versions = locked("requirements.txt")
    required = [
        *project["dependencies"],
        *(each for name, listed in extras.items() if name != "bench" for each in listed),
    ]
    assert unsatisfied(required, versions) == []
    assert unsatisfied(extras["bench"], versions | locked("requirements-bench.txt")) == []
    assert unsatisfied(["numpy>=999", "unknown"], versions) == ["numpy>=999", "unknown"]


def unsatisfied(required: list[str], versions: dict[str, str]) -> list[str]:
    found: list[str] = []
    for requirement in map(Requirement, required):
        version = versions.get(canonicalize_name(requirement.name))
        if requirement.name != "holdfast" and (version is None or not requirement.specifier.contains(version)):
            found.append(str(requirement))
    return found
