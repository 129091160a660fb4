"""One temporary folder for a whole run of tests, for its workers and for every program that they start.

It is removed at the end of the run, or by the next run if this one is killed. ``find_leftovers`` lists what should not
have been left in it, and the processes of the run that are still alive: TMPDIR in their environment names the folder,
even after their parent has ended. Folders of failed tests are kept until the next run.
"""

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from holdfast.base.scratch import Scratch
from tests.leftovers import PATIENCE_S, command_of, is_helper

FOLDER = "holdfast-tests-"
PATIENCE = "LEFTOVERS_PATIENCE_S"
"""In the environment: how long a process may take to end after the last test, instead of ``PATIENCE_S``."""


class Temporary:
    """The folder of this process's run. Nothing may be left in it but ``tests``."""

    def __init__(self) -> None:
        self._before = os.environ.get("TMPDIR"), tempfile.tempdir
        self._scratch = Scratch(FOLDER)
        self._scratch.sweep()
        self.path = self._scratch.path
        self.tests = self.path / "t"  # short: the path of a Unix socket has at most about a hundred bytes
        """Created and used by pytest."""
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.path)

        self.leftovers: list[str] = []
        self.interrupted = True
        """Until the run is known to have finished."""
        self.failed = False
        """Whether the folders of tests are kept."""

    def find_leftovers(self) -> list[str]:
        """What is left at the end of the run. Processes get time to end, then they are killed."""
        patience_s = float(os.environ.get(PATIENCE, PATIENCE_S))
        deadline = time.monotonic() + (0 if self.interrupted else patience_s)
        while (found := processes_below(self.path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.leftovers = [f"process {each.pid} ({command_of(each.pid)})" for each in found]
        for each in found:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(found)
        names = sorted(each.name for each in self.path.iterdir() if each != self.tests)
        self.leftovers += [f"{name} in the temporary folder" for name in names]
        return self.leftovers

    def close(self) -> None:
        """Remove the folder, except for the folders of failed tests."""
        if self.interrupted:
            self.find_leftovers()
        if self.failed:
            for each in self.path.iterdir():
                if each != self.tests:
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
        else:
            self._scratch.close()
        os.environ.pop("TMPDIR")
        if self._before[0] is not None:
            os.environ["TMPDIR"] = self._before[0]
        tempfile.tempdir = self._before[1]


def processes_below(folder: Path) -> list[psutil.Process]:
    """Live processes whose TMPDIR is ``folder`` or below it, but for this one and the helpers that end with it."""
    return [
        each
        for each in psutil.process_iter()
        if each.pid != os.getpid() and _is_below(each, folder) and not _is_own_helper(each)
    ]


def _is_own_helper(process: psutil.Process) -> bool:
    try:
        return process.ppid() == os.getpid() and is_helper(command_of(process.pid))
    except psutil.Error:  # it has just ended
        return False


def _is_below(process: psutil.Process, folder: Path) -> bool:
    try:
        temporary = Path(process.environ().get("TMPDIR", "/"))
        return temporary.is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # it has just ended, or belongs to another user
        return False
