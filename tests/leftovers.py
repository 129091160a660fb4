"""What a test must not leave behind: processes, threads, files in the working folder or in the temporary one.

A fixture that outlives one test and owns a process (a server for the whole session) calls ``adopt`` with its pid.
"""

import tempfile
import threading
import time
from pathlib import Path

import psutil

PATIENCE_S = 10
STARTING_S = 1.0
_adopted: set[int] = set()
# Helpers of multiprocessing live as long as the interpreter that started them and cannot be stopped earlier.
_INTERPRETER_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# These threads end by themselves shortly after the call or the event loop that used them: wait for them.
_END_BY_THEMSELVES = {"holdfast-own-thread", "AnyIO worker thread"}
# Written by tools that a developer may run at the same time as the tests.
_NOT_OURS = {"__pycache__", ".git", ".venv", ".hypothesis"}


def adopt(pid: int) -> None:
    _adopted.add(pid)


class Snapshot:
    """Taken before a test; ``leftovers`` lists what exists now and did not exist then."""

    def __init__(self) -> None:
        self._children = _children()
        self._threads = set(threading.enumerate())
        self._folder = Path.cwd()
        self._files = _names(self._folder)
        self._temporary = Path(tempfile.gettempdir())
        self._temporaries = _names(self._temporary)

    def leftovers(self) -> list[str]:
        deadline = time.monotonic() + STARTING_S
        while (found := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.02)  # a helper that was just started still shows the command of its parent
        for thread in threading.enumerate():
            if thread.name in _END_BY_THEMSELVES:
                thread.join(PATIENCE_S)
        found += [
            f"thread {thread.name}"
            for thread in threading.enumerate()
            if thread not in self._threads and thread.is_alive() and (not thread.daemon or _is_ours(thread))
        ]
        if Path.cwd() != self._folder:
            found.append(f"working folder {Path.cwd()}")
        found += [f"file {name} in the working folder" for name in sorted(_names(self._folder) - self._files)]
        more = _names(self._temporary) - self._temporaries
        return found + [f"{name} in the temporary folder" for name in sorted(more)]

    def _processes(self) -> list[str]:
        return [
            f"process {pid} ({command})"
            for pid in sorted(_children() - self._children - _adopted)
            if not is_helper(command := command_of(pid))
        ]


def _children() -> set[int]:
    """Children of this process. Linux lists them in /proc; elsewhere psutil scans all processes."""
    try:
        lists = [(thread / "children").read_text() for thread in Path("/proc/self/task").iterdir()]
    except OSError:  # no such list on this system, or a thread has just ended
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for each in lists for pid in each.split()}


def command_of(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "ended, not waited for"


def is_helper(command: str) -> bool:
    """A process of multiprocessing that ends with the interpreter that started it."""
    return any(helper in command for helper in _INTERPRETER_HELPERS)


def _is_ours(thread: threading.Thread) -> bool:
    """A daemon thread is not joined at exit, so one of our own that is left running would go unnoticed."""
    return thread.name.startswith("holdfast")


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name not in _NOT_OURS and not path.name.endswith("_cache")}
