"""What tests of ``holdfast runs`` share: workflows, a store in a folder, and the real command."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast import objects, runs
from holdfast.base.config import load
from holdfast.cli.main import run
from holdfast.objects import Client

T = TypeVar("T")


@runs.workflow(version="1")
async def order(ctx: runs.Context, item: str, *, broken: bool = False) -> Any:
    """Reserves, waits for a payment, ships; releases what it reserved when it is cancelled."""
    await ctx.step("reserve", str.upper, item)
    try:
        paid = await ctx.suspend("payment", amount=5)
    except runs.Cancelled:
        await ctx.step("release", str.lower, item)
        raise
    if broken:
        raise ValueError("the lorry is broken")
    await ctx.step("ship", dict, paid=paid)
    return {"shipped": item}


@runs.workflow(version="1")
async def nap(ctx: runs.Context) -> str:
    await ctx.sleep(hours=2)
    return "awake"


@runs.workflow()
async def bulky(ctx: runs.Context) -> int:
    return len(await ctx.step("fetch", bytes, 40_000))


class RunsDesk:
    def __init__(self, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.uri = uri
        self._capsys = capsys

    def do(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Something with the store, as an application would."""

        async def opened() -> T:
            async with objects.open(self.uri, settings=load()) as store:
                return await work(store)

        return asyncio.run(opened())

    def start(self, workflow: runs.Workflow, *args: Any, **kwargs: Any) -> runs.Outcome:
        return self.do(lambda store: workflow.start(store, *args, **kwargs))

    def ship(self, run_id: str, **kwargs: Any) -> runs.Outcome:
        """An order from its beginning to its end."""
        self.start(order, "hat", run_id=run_id, **kwargs)
        return self.do(lambda store: order.resume(store, run_id, "payment", 5))

    def work(self) -> int:
        """Everything that is due, as a worker would."""
        return self.do(lambda store: runs.worker(store, [order, nap, bulky], until_idle=True)).called

    def holdfast(self, *arguments: str, code: int = 0) -> str:
        """The real command; what it printed, with errors and notes after results."""
        assert run(["runs", *arguments, "--store", self.uri]) == code
        printed = self._capsys.readouterr()
        return printed.out + printed.err

    def document(self, *arguments: str) -> Any:
        """The one JSON document that the command printed."""
        (line,) = self.holdfast(*arguments, "--json").splitlines()
        return json.loads(line)

    def documents(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.holdfast(*arguments).splitlines()]


def desk_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> RunsDesk:
    (folder / "store").mkdir()
    return RunsDesk(f"file:{folder}/store", capsys)
