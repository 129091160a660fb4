"""The stage of the demo: one store, processes that can be killed, claims that are checked, and lines of output."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast.base.errors import HoldfastError
from holdfast.cli.output import Output
from holdfast.objects import Usage

SETTINGS = {"HOLDFAST_PIPELINE__WINDOWS": "1m,1h", "HOLDFAST_BUS__EVENT_LEASE_MS": "1500"}
"""Of processes. The event of a killed worker is handed out again when its lease ends, by default after 30 s."""


@dataclass
class Stage:
    out: Output
    folder: Path  # the store: objects are files in it
    scratch: Path  # tokens, logs and temporary files of processes
    master: str | None = None  # Spark's; None for that of the settings
    usage: Usage = field(default_factory=Usage)  # of this process, and of those that report theirs
    claims: list[str] = field(default_factory=list)
    _waiting_for: str = ""
    _waited_s: float = 0.0
    _quiet_s: float = 0.0

    @property
    def uri(self) -> str:
        return f"file:{self.folder}"

    def begin(self, title: str) -> None:
        self.say("")
        self.say(title)

    def say(self, text: str) -> None:
        self._quiet_s = 0.0
        self.out.line(text)

    def wait_for(self, what: str) -> None:
        self._waiting_for, self._waited_s = what, 0.0

    async def show_waiting(self) -> None:
        """Print what the demo waits for whenever nothing has been printed for two seconds."""
        while True:
            await asyncio.sleep(0.5)
            self._quiet_s += 0.5
            if self._quiet_s >= 2:
                self._waited_s += self._quiet_s
                self.say(f"      ... {self._waiting_for}, {self._waited_s:.0f} s")

    def check(self, claim: str, holds: bool, found: object) -> None:
        """Print the claim if it holds; otherwise fail the act, and so the command, with what was found."""
        if not holds:
            self.say(f"  FAILED  {claim}")
            raise HoldfastError(f"this does not hold: {claim}; found: {found}", remedy="keep the store with --dir PATH")
        self.claims.append(claim)
        self.say(f"  ok  {claim}")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[holdfast.Holdfast]:
        """The platform on the demo's store; its requests are added to the bill."""
        async with holdfast.open(self.uri) as hf:
            yield hf
            self.charge(hf.store.usage.by_verb)

    def charge(self, by_verb: dict[str, int]) -> None:
        for verb, requests in by_verb.items():
            self.usage.at(verb, "demo").requests += requests

    @asynccontextmanager
    async def process(self, name: str, *words: str) -> AsyncIterator["Process"]:
        """``python -m WORDS`` on this store. It is killed at the end of the block, with its children."""
        log = self.scratch / f"{name}.log"
        with log.open("wb") as stderr:
            started = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *words),
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "HOLDFAST_STORE": self.uri, "TMPDIR": str(self.scratch), **SETTINGS},
                start_new_session=True,  # Ctrl-C is for the demo alone, which then kills its processes
            )
        process = Process(name, log, started)
        try:
            yield process
        finally:
            await process.stop(signal.SIGKILL)


@dataclass(frozen=True)
class Process:
    name: str
    log: Path
    started: asyncio.subprocess.Process

    async def lines(self) -> AsyncIterator[str]:
        """The lines that it prints, until it closes its output."""
        if self.started.stdout is not None:
            async for line in self.started.stdout:
                yield line.decode().rstrip("\n")

    def send(self, number: signal.Signals) -> None:
        """Send the signal to it and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.started.pid, number)

    async def stop(self, number: signal.Signals) -> None:
        """Send the signal, and wait for the end of the process."""
        self.send(number)
        await self.started.communicate()

    async def succeed(self) -> None:
        if code := await self.started.wait():
            raise HoldfastError(f"the {self.name} failed with exit code {code}: {self.last_line()}")

    def last_line(self) -> str:
        return self.log.read_text(errors="replace").strip().rpartition("\n")[2] or "it printed nothing"
