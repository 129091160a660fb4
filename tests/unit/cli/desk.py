"""What tests of commands share: a store in a folder with the real command on it, and an output with its streams."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from holdfast import objects
from holdfast.cli.main import run
from holdfast.cli.output import Output
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
        code = run(["--store", self.uri, *self.noun, *words])
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Streams:
    """An output whose streams are kept."""

    def __init__(self, *, as_json: bool = False, stdout: io.StringIO | None = None, on_terminal: bool = False) -> None:
        self.stdout = stdout or io.StringIO()
        self.stderr = Terminal() if on_terminal else io.StringIO()
        self.out = Output(as_json=as_json, stdout=self.stdout, stderr=self.stderr)

    @property
    def printed(self) -> tuple[str, str]:
        return self.stdout.getvalue(), self.stderr.getvalue()


def is_harmless(text: str) -> bool:
    """Whether a terminal shows the text as it is."""
    return all(char == "\n" or char.isprintable() for char in text)
