"""The scripts that run before Python packages are there, each in a small world of its own on PATH."""

import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

NEED = ROOT / "tools" / "need"
UTILITIES = ("sh", "sed", "basename", "dirname", "cat", "rm", "chmod", "cp", "mkdir", "mktemp")
OLD_JAVA = "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2"
NEW_JAVA = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"


@dataclass
class World:
    """A PATH with nothing on it but a few utilities and the programs that a test puts there."""

    folder: Path

    def program(self, name: str, body: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env={"PATH": str(self.folder), **variables},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    for name in UTILITIES:
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    result = World(tmp_path)
    result.program("id", "echo 1000")
    return result


class TestNeed:
    def test_a_program_that_is_there_is_found(self, world: World) -> None:
        java = world.program("java", NEW_JAVA)
        chromium = world.program("chromium-browser", "echo Chromium 130")
        result = world.run(NEED, "java", "chromium")
        assert (result.returncode, result.stdout) == (0, f"{java}\n{chromium}\n")

    @pytest.mark.parametrize(("name", "program"), [("java", "Java 17 or newer"), ("chromium", "Chromium")])
    def test_a_missing_program_is_one_clear_line(self, world: World, name: str, program: str) -> None:
        result = world.run(NEED, name)
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith(f"error: {program} was not found and could not be installed here")

    def test_an_old_java_does_not_count(self, world: World) -> None:
        world.program("java", OLD_JAVA)
        assert world.run(NEED, "java").returncode == 1
        world.program("java", "echo 'java version \"1.8.0_402\"' >&2")
        assert world.run(NEED, "java").returncode == 1

    def test_java_home_is_looked_at_first(self, world: World) -> None:
        world.program("java", OLD_JAVA)
        (world.folder / "jdk" / "bin").mkdir(parents=True)
        newer = world.program("jdk/bin/java", NEW_JAVA)
        result = world.run(NEED, "java", JAVA_HOME=str(world.folder / "jdk"))
        assert (result.returncode, result.stdout) == (0, f"{newer}\n")

    def test_root_installs_what_is_missing(self, world: World) -> None:
        world.program("id", "echo 0")
        world.program("spare", "echo Chromium 130")
        # The lists are empty until they were updated, as on a fresh machine.
        world.program(
            "apt-get",
            'echo "$@" >>log; case $1 in update) : >updated;; install) [ -f updated ] && cp spare chromium;; esac',
        )
        result = world.run(NEED, "chromium")
        assert result.returncode == 0
        assert result.stdout == f"{world.folder / 'chromium'}\n"
        install = "install -y --no-install-recommends chromium"
        assert (world.folder / "log").read_text().splitlines() == [install, "update", install]

    def test_an_installation_that_fails_is_one_clear_line(self, world: World) -> None:
        world.program("id", "echo 0")
        world.program("apt-get", "echo no network >&2; exit 100")
        result = world.run(NEED, "java")
        assert result.returncode == 1
        assert result.stderr.splitlines()[-1].startswith("error: Java 17 or newer was not found")
        assert "no network" not in result.stderr

    def test_without_root_nothing_is_installed(self, world: World) -> None:
        world.program("apt-get", "echo called >log")
        assert world.run(NEED, "chromium").returncode == 1
        assert not (world.folder / "log").exists()

    @pytest.mark.parametrize("arguments", [[], ["python2"]])
    def test_wrong_use(self, world: World, arguments: list[str]) -> None:
        assert world.run(NEED, *arguments).returncode == 2


class TestSetup:
    def test_no_python_is_one_clear_line(self, world: World) -> None:
        world.program("python3", "exit 127")
        world.program("python3.11", "exit 1")
        result = world.run(ROOT / "tools" / "setup", ".venv", "dev")
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith("error: no Python 3.11 or newer with the venv module was found")
        assert not (world.folder / ".venv").exists()

    def test_a_shim_that_does_not_run_is_passed_over(self, world: World) -> None:
        world.program("python3", "exit 127")
        world.program("python3.12", 'case $1 in -m) echo "$@" >log; exit 9;; --version) echo Python 3.12.1;; esac')
        result = world.run(ROOT / "tools" / "setup", ".venv", "dev")
        assert result.returncode == 9
        assert "with Python 3.12.1" in result.stdout
        assert (world.folder / "log").read_text() == "-m venv .venv\n"


class TestEachBench:
    def test_every_package_with_a_main_is_run(self, world: World) -> None:
        for name in ("one", "two"):
            (world.folder / "bench" / name).mkdir(parents=True)
            (world.folder / "bench" / name / "__main__.py").touch()
        (world.folder / "bench" / "data").mkdir()
        python = world.program("python", 'echo "ran $@"')
        result = world.run(ROOT / "tools" / "each-bench", python)
        assert result.returncode == 0
        assert result.stdout.splitlines() == ["bench: one", "ran -m bench.one", "bench: two", "ran -m bench.two"]

    @pytest.mark.parametrize("end", ["true", "false", "kill -INT $PPID"])
    def test_what_one_leaves_is_told_and_removed(self, world: World, end: str) -> None:
        (world.folder / "bench" / "one").mkdir(parents=True)
        (world.folder / "bench" / "one" / "__main__.py").touch()
        (temporary := world.folder / "tmp").mkdir()
        python = world.program("python", f"mkdir $TMPDIR/forgotten; {end}")
        result = world.run(ROOT / "tools" / "each-bench", python, TMPDIR=str(temporary))
        assert ((result.returncode == 0), list(temporary.iterdir())) == (end == "true", [])
        assert ("one left forgotten" in result.stderr) == (end == "true")

    def test_nothing_to_run_is_an_error(self, world: World) -> None:
        result = world.run(ROOT / "tools" / "each-bench", "python")
        assert result.returncode == 1
        assert "no benchmark found" in result.stderr


def test_the_ceph_gateway_wants_root(world: World) -> None:
    result = world.run(ROOT / "tools" / "with-ceph", "ceph", "7480", "sh")
    assert result.returncode == 1
    assert result.stderr.startswith("error: the Ceph gateway runs in a chroot and needs root")


def test_make_help_lists_every_target() -> None:
    command = ["make", "--no-print-directory", "help"]  # under make itself it would also say where it works
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in listed.splitlines()}
    phony = next(
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY: help")
    ).split()[1:]
    assert names == set(phony)
    assert {"demo", "test", "lint", "sim", "bench", "soak", "test-ceph", "docs", "clean"} <= names


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().splitlines()[-1] == "exec make test"


def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_pins_are_names_and_versions_alone() -> None:
    assert all(line.count("==") == 1 and not set(line) & set("/:@;<>~ ") for line in pins())
    names = [line.partition("==")[0].lower() for line in pins()]
    assert names == sorted(names)


def test_everything_that_is_installed_is_pinned_to_its_version() -> None:
    pinned = {line.lower().replace("_", "-") for line in pins()}
    installed = {
        f"{package.name}=={package.version}".lower().replace("_", "-")
        for package in distributions()
        if package.name not in {"holdfast", "pip", "setuptools"}
    }
    assert len(installed) > 30
    assert installed - pinned == set()
