"""What tests of commands share: a store in a folder, and the real command on it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from holdfast import objects
from holdfast.cli.main import run
from holdfast.objects import Client

T = TypeVar("T")


class Desk:
    noun: ClassVar[tuple[str, ...]] = ()
    """The words that every line begins with."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        (folder / "store").mkdir()
        self.uri = f"file:{folder / 'store'}"
        self._capsys = capsys

    def do(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Something with the store, as an application would."""

        async def opened() -> T:
            async with objects.open(self.uri) as store:
                return await work(store)

        return asyncio.run(opened())

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """The exit code, and what was printed as results and as remarks."""
        code = run([*self.noun, *words, "--store", self.uri])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def text(self, *words: str, code: int = 0) -> str:
        found, out, err = self(*words)
        assert found == code, err
        return out + err

    def json(self, *words: str, code: int = 0) -> Any:
        found, out, err = self(*words, "--json")
        assert found == code, err
        return json.loads(out)
