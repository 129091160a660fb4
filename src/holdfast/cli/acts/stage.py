"""What an act plays on: the store, a tally of what it costs, other processes, and a line that says what is going on."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from holdfast.base.ids import Ambient
from holdfast.objects.client import DOLLARS_PER_REQUEST, Client, Usage
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec

HAND = "holdfast.cli.acts.hand"

LONGEST_LINE = 1 << 24

T = TypeVar("T")


class ProofFailed(Exception):
    """What was promised is not what was seen. The message is the evidence."""


def prove(condition: bool, evidence: str) -> None:
    """An act's one way to judge."""
    if not condition:
        raise ProofFailed(evidence)


@dataclass(frozen=True)
class Act:
    """One proof: what it shows, why that matters, and the function that returns what it measured."""

    title: str
    why: str
    run: Callable[["Stage"], Awaitable[str]]
    part: str = ""
    """The part of the programme that begins with it."""


@dataclass
class Stage:
    spec: StoreSpec
    ambient: Ambient
    scratch: Path = Path()
    """A folder for what is not the store's: tokens, logs of processes."""
    master: str | None = None
    """Spark's, for the pipeline; None for what the settings say."""
    status: str = ""
    """What is going on now, for the live display."""
    told: list[str] = field(default_factory=list)
    """What has happened in this act."""
    props: dict[type, object] = field(default_factory=dict)
    """What an act leaves for later ones, by its type."""
    spent: dict[str, int] = field(default_factory=dict)
    """Requests so far, per verb."""

    @property
    def root(self) -> Path:
        """The folder that is the store: objects are files in it."""
        return Path(self.spec.place)

    def tell(self, text: str) -> None:
        """Something that happened, worth keeping on the screen until the act is over."""
        self.told.append(text)
        self.status = ""

    def leave(self, prop: object) -> None:
        self.props[type(prop)] = prop

    def take(self, kind: type[T]) -> T:
        """What an earlier act left."""
        found = self.props.get(kind)
        if not isinstance(found, kind):
            raise ProofFailed("an act that this one goes on from has failed")
        return found

    @property
    def requests(self) -> int:
        return sum(self.spent.values())

    @property
    def dollars(self) -> float:
        return sum(DOLLARS_PER_REQUEST[verb] * count for verb, count in self.spent.items())

    def charge(self, by_verb: dict[str, int]) -> None:
        for verb, count in by_verb.items():
            self.spent[verb] = self.spent.get(verb, 0) + count

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Client]:
        """The store, opened for one act; its requests go on the bill."""
        usage = Usage()
        try:
            async with open_store(self.spec, ambient=self.ambient) as store:
                usage = store.usage
                yield store
        finally:
            self.charge(usage.by_verb)

    @asynccontextmanager
    async def hands(self, key: str, names: list[str], turns: int) -> AsyncIterator[list["Hand"]]:
        """Processes that are ready to increment the register at ``key``; none outlives the block."""
        async with AsyncExitStack() as stack:
            hands = [await stack.enter_async_context(self._hand(key, name, turns)) for name in names]
            for hand in hands:
                await hand.expect("ready")
            yield hands

    @asynccontextmanager
    async def _hand(self, key: str, name: str, turns: int) -> AsyncIterator["Hand"]:
        async with self.program(HAND, key, name, str(turns)) as process:
            yield Hand(self, name, process)

    @asynccontextmanager
    async def program(self, module: str, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Another process, told where the store is; killed at the end of the block if it still runs."""
        async with ending(await started(sys.executable, "-m", module, self.spec.uri, *args)) as process:
            yield process

    @asynccontextmanager
    async def command(
        self, *args: str, log: str | None = None, **environ: str
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """``holdfast ARGS`` on this store; killed at the end of the block if it still runs.

        What it says on standard error goes to a file called ``log``, for a process that nobody listens to."""
        words = (sys.executable, "-m", "holdfast", "--store", self.spec.uri, *args)
        with ExitStack() as stack:
            stderr = asyncio.subprocess.PIPE
            if log is not None:
                stderr = stack.enter_context((self.scratch / log).open("wb")).fileno()
            process = await started(*words, stderr=stderr, environ=environ)
        async with ending(process):
            yield process

    def last_words(self, log: str) -> str:
        """The last line in a log."""
        lines = (self.scratch / log).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


async def started(
    *words: str, stderr: int = asyncio.subprocess.PIPE, environ: dict[str, str] | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **(environ or {})},
        start_new_session=True,  # Ctrl-C is for the demo, which then ends its processes
        limit=LONGEST_LINE,
    )


@asynccontextmanager
async def ending(process: asyncio.subprocess.Process) -> AsyncIterator[asyncio.subprocess.Process]:
    """Whatever of it is left at the end of the block is killed: also its children, which are of its session."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


class Hand:
    """One process at work on a counter; see ``hand.py`` for what it says."""

    def __init__(self, stage: Stage, name: str, process: asyncio.subprocess.Process) -> None:
        self._stage = stage
        self.name = name
        self._process = process
        self.acknowledged = 0

    async def go(self) -> None:
        await self._say("go\n")

    async def expect(self, word: str) -> None:
        line = await self._line()
        if line != word:
            raise await self._trouble(f"said {line!r} instead of {word!r}")

    async def step(self) -> bool:
        """Wait for the next acknowledged increment; False when the hand is done."""
        line = await self._line()
        if line.startswith("ack "):
            self.acknowledged += 1
            return True
        if not line.startswith("{"):
            raise await self._trouble(f"said {line!r}")
        self._stage.charge(json.loads(line))
        return False

    async def finish(self) -> None:
        while await self.step():
            self._stage.status = f"{self.name}: {self.acknowledged} increments"
        if await self._process.wait() != 0:
            raise await self._trouble("failed at the end")

    async def kill(self) -> None:
        """SIGKILL: no warning, no clean-up of its own."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()

    async def _say(self, text: str) -> None:
        if self._process.stdin is None:
            raise ProofFailed(f"process {self.name} cannot be spoken to")
        self._process.stdin.write(text.encode())
        await self._process.stdin.drain()

    async def _line(self) -> str:
        if self._process.stdout is None:
            raise ProofFailed(f"process {self.name} cannot be heard")
        return (await self._process.stdout.readline()).decode().rstrip("\n")

    async def _trouble(self, what: str) -> ProofFailed:
        if self._process.returncode is None:
            self._process.kill()
        _, stderr = await self._process.communicate()
        last = stderr.decode(errors="replace").strip().splitlines()[-1:]
        return ProofFailed(" ".join([f"process {self.name} {what};", *last]))
