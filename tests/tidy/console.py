"""A page followed step by step at a terminal: files to save, commands to type, and what they print.

A block fenced as ``py file=NAME`` is saved under that name. In a block fenced as ``console`` a line that begins with
``$ `` is a command and the lines up to the next one are what it prints, on both streams; ``...`` stands for anything.
A command must succeed, unless what it prints says otherwise: ``Killed``, as a shell says it, or ``error: ``.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tidy.docs import Block

PROMPT = "$ "
FILE = "py file="
SIGKILLED = -9


@dataclass(frozen=True)
class Command:
    line: int
    text: str
    printed: str


def follow(page: Iterable[Block], name: str, folder: Path) -> int:
    """Do what these blocks of a page say in ``folder``; how many commands were typed. The first that differs fails."""
    typed = 0
    for block in page:
        if block.info.startswith(FILE):
            (folder / block.info.removeprefix(FILE)).write_text(block.text, encoding="utf-8")
        elif block.info == "console":
            for command in commands(block):
                _type(command, name, folder)
                typed += 1
    return typed


def commands(block: Block) -> Iterator[Command]:
    number, text, printed = block.line, "", list[str]()
    for offset, line in enumerate(block.text.splitlines(), 1):
        if line.startswith(PROMPT):
            if text:
                yield Command(number, text, "\n".join(printed))
            number, text, printed = block.line + offset, line.removeprefix(PROMPT), []
        else:
            printed.append(line)
    if text:
        yield Command(number, text, "\n".join(printed))


def matches(shown: str, printed: str) -> bool:
    """Whether what was printed is what the page shows. Widths of columns depend on what stands for anything."""
    pattern = re.escape(_squeezed(shown)).replace(re.escape("..."), ".*?")
    return re.fullmatch(pattern, _squeezed(printed), re.DOTALL) is not None


def _squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def _type(command: Command, page: str, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        shlex.split(command.text),
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},  # a terminal shows each line at once
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    printed = done.stdout + ("Killed\n" if done.returncode == SIGKILLED else "")
    where = f"{page}:{command.line}: {command.text}"
    if not matches(command.printed, printed):
        raise AssertionError(f"{where}\nthe page shows\n{command.printed}\nand it printed\n{printed}")
    if done.returncode != 0 and not re.search(r"^(Killed|error: )", printed, re.MULTILINE):
        raise AssertionError(f"{where}\nexit code {done.returncode}")
