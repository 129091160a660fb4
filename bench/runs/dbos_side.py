"""DBOS as a contender: a process per SQLite file, which is given work over a pipe.

SQLite is set as DBOS leaves it: a rollback journal and synchronous=FULL. Its commit is the removal of the journal file,
which SQLite syncs only at EXTRA, so a power failure may undo the last one; a run of ours syncs the folder too. And once
more with a write-ahead log, which DBOS does not choose, but keeps if the file has it: at FULL every commit is synced,
once, so this is the best that it can do at our durability.
"""

import asyncio
import json
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.runs.rounds import Measure, Taken

INSTALLED = find_spec("dbos") is not None
MISSING = "DBOS is not installed, so it is left out; pip install -r requirements-bench.txt adds it"

MODES = {"DBOS": "delete", "DBOS, WAL": "wal"}
ROOT = Path(__file__).parents[2]


class Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, file: Path, mode: str, steps: int) -> "Process":
        command = [sys.executable, "-m", "bench.runs.dbos_process", str(file), mode, str(steps)]
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
            )
        )

    async def ask(self, line: str) -> dict[str, Any]:
        if self._process.stdin is None:
            raise RuntimeError("no pipe")
        self._process.stdin.write(line.encode() + b"\n")
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError("no pipe")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process with DBOS ended early")
        found: dict[str, Any] = json.loads(line)
        return found

    async def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()


def new_file(file: Path, journal_mode: str) -> Path:
    connection = sqlite3.connect(file)
    try:
        (found,) = connection.execute(f"pragma journal_mode={journal_mode}").fetchone()
    finally:
        connection.close()
    if found != journal_mode:
        raise RuntimeError(f"SQLite has journal mode {found}")
    return file


@asynccontextmanager
async def running(folder: Path, journal_mode: str, steps: int) -> AsyncIterator[tuple[Measure, dict[str, Any]]]:
    """A contender that runs the workflow, and how its SQLite is set."""
    process = await Process.start(new_file(folder / f"{journal_mode}-{steps}.sqlite", journal_mode), "serve", steps)

    async def measure(number: int) -> Taken:
        return Taken(**await process.ask(f"run-{number}"))

    try:
        yield measure, await process.hear()
    finally:
        await process.end()


async def recovering(folder: Path, journal_mode: str, steps: int) -> Measure:
    """A contender that finishes a workflow of which all steps were recorded when its process was killed."""
    left = new_file(folder / f"left-{journal_mode}-{steps}.sqlite", journal_mode)
    dying = await Process.start(left, "die", steps)
    await dying.hear()
    await dying.end()

    async def measure(number: int) -> Taken:
        mine = folder / f"resume-{journal_mode}-{steps}-{number}.sqlite"
        for suffix in ("", "-wal", "-journal"):
            if (source := Path(f"{left}{suffix}")).exists():
                shutil.copyfile(source, f"{mine}{suffix}")
        process = await Process.start(mine, "recover", steps)
        taken = Taken(**await process.hear())
        await process.end()
        return taken

    return measure
