"""Who is compared: our whole stack, obstore by itself, and plain files. Each does the same four operations."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import obstore

from bench.objects.plain import write_durably
from holdfast import objects
from holdfast.objects import CREATE, IfMatch, Version, Written

if TYPE_CHECKING:  # obstore's typed dictionaries exist for type checkers only
    from obstore import PutMode

Verb = Literal["create", "replace", "get", "list"]


@dataclass(frozen=True, slots=True)
class Step:
    verb: Verb
    key: str
    """A prefix for ``list``."""
    body: bytes = b""


Plan = Sequence[Sequence[Step]]
"""What each worker does, one step after the other; the workers run at the same time."""


class Client(ABC):
    requests = 0
    """Made so far."""

    def __init__(self) -> None:
        self._versions: dict[str, Any] = {}
        """Of the objects that this client wrote, as its writes were answered."""

    @abstractmethod
    async def run(self, plan: Plan) -> None: ...


class AsyncClient(Client):
    async def run(self, plan: Plan) -> None:
        await asyncio.gather(*(self._work(steps) for steps in plan))

    async def _work(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step.verb:
                case "create":
                    self._versions[step.key] = await self.create(step.key, step.body)
                case "replace":
                    self._versions[step.key] = await self.replace(step.key, step.body, self._versions[step.key])
                case "get":
                    expect(len(await self.get(step.key)) > 0)
                case "list":
                    expect(await self.list(step.key) == 1000)

    @abstractmethod
    async def create(self, key: str, body: bytes) -> Any: ...

    @abstractmethod
    async def replace(self, key: str, body: bytes, version: Any) -> Any: ...

    @abstractmethod
    async def get(self, key: str) -> bytes: ...

    @abstractmethod
    async def list(self, prefix: str) -> int: ...


class Holdfast(AsyncClient):
    def __init__(self, store: objects.Client) -> None:
        super().__init__()
        self._store = store

    @property
    def requests(self) -> int:  # type: ignore[override]  # the stack counts its own
        return self._store.usage.requests()

    async def create(self, key: str, body: bytes) -> Version:
        outcome = await self._store.put(key, body, CREATE)
        expect(isinstance(outcome, Written))
        return outcome.version if isinstance(outcome, Written) else Version("")

    async def replace(self, key: str, body: bytes, version: Any) -> Version:
        outcome = await self._store.put(key, body, IfMatch(version))
        expect(isinstance(outcome, Written))
        return outcome.version if isinstance(outcome, Written) else Version("")

    async def get(self, key: str) -> bytes:
        return (await self._store.get(key)).body

    async def list(self, prefix: str) -> int:
        return sum([len(page.entries) async for page in self._store.list(prefix)])


class Obstore(AsyncClient):
    """As its documentation uses it: no checks, no counting, errors left to raise."""

    def __init__(self, store: "obstore.store.ObjectStore") -> None:
        super().__init__()
        self._store = store

    async def create(self, key: str, body: bytes) -> Any:
        self.requests += 1
        return await obstore.put_async(self._store, key, body, mode="create", use_multipart=False)

    async def replace(self, key: str, body: bytes, version: Any) -> Any:
        self.requests += 1
        condition: PutMode = {"e_tag": version["e_tag"]}
        return await obstore.put_async(self._store, key, body, mode=condition, use_multipart=False)

    async def get(self, key: str) -> bytes:
        self.requests += 1
        answer = await obstore.get_async(self._store, key)
        return (await answer.bytes_async()).to_bytes()

    async def list(self, prefix: str) -> int:
        total = 0
        async for page in obstore.list(self._store, prefix, chunk_size=1000):
            self.requests += 1
            total += len([(meta["path"], meta["size"], meta["last_modified"]) for meta in page])
        return total


class PlainFiles(Client):
    """The least that a safe write to a folder takes: write aside, sync, rename, sync the folder. No conditions."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def run(self, plan: Plan) -> None:
        if len(plan) == 1:
            self._work(plan[0])
            return
        with ThreadPoolExecutor(len(plan)) as threads:
            list(threads.map(self._work, plan))

    def _work(self, steps: Sequence[Step]) -> None:
        for step in steps:
            path = self._folder / step.key
            if step.verb == "get":
                expect(len(path.read_bytes()) > 0)
            elif step.verb == "list":
                expect(len(_listing(path)) == 1000)
            else:
                write_durably(path, step.body)


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    with os.scandir(folder) as found:
        return sorted((item.name, (status := item.stat()).st_size, status.st_mtime_ns) for item in found)


def expect(condition: bool) -> None:
    """A benchmark of wrong answers measures nothing."""
    if not condition:
        raise RuntimeError("an operation did not do what it should; the figures would be worthless")
