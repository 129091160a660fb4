"""Documentation as a program: examples that run, links that lead somewhere.

Every block fenced as ``python`` runs, in order, in one namespace and one event loop per file; top-level ``await`` is
allowed. A block fenced as ``python no-run`` is shown only.
"""

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")


@dataclass(frozen=True)
class Block:
    line: int
    info: str
    text: str

    @property
    def runs(self) -> bool:
        return self.info.split() == ["python"]


def blocks(text: str) -> Iterator[Block]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        opening = FENCE.match(line)
        if not opening:
            continue
        indent, fence = len(opening["indent"]), opening["fence"]
        body: list[str] = []
        for _, inner in lines:
            if inner.strip().startswith(fence) and not inner.strip().strip(fence[0]):
                break
            body.append(inner[indent:] if not inner[:indent].strip() else inner)
        yield Block(number, opening["info"].strip(), "\n".join(body) + "\n")


def run_examples(path: Path) -> int:
    """Run a file's examples in the current folder; how many ran. An error carries the line of the document."""
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    count = 0
    with asyncio.Runner() as runner:
        for block in blocks(path.read_text(encoding="utf-8")):
            if not block.runs:
                continue
            # Line numbers of the document, so that a traceback points into it.
            source = "\n" * block.line + block.text
            code = compile(source, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, namespace))
            else:
                exec(code, namespace)
            count += 1
    return count


def prose(text: str) -> str:
    """The text with fenced blocks and inline code blanked out, line for line."""
    kept: list[str] = []
    fence = ""
    for line in text.splitlines():
        match = FENCE.match(line)
        if match and not fence:
            fence = match["fence"]
            kept.append("")
        elif fence:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            kept.append("")
        else:
            kept.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(kept)


def anchors(text: str) -> set[str]:
    """The names that headings get when the page is shown."""
    found: set[str] = set()
    for line in text.splitlines():
        if match := HEADING.match(line):
            words = re.sub(r"[^\w\- ]", "", match[1].lower()).replace(" ", "-")
            found.add(words)
    return found


def broken_links(path: Path, root: Path) -> list[str]:
    """Relative links of one page that lead nowhere, or out of the project."""
    broken: list[str] = []
    for number, line in enumerate(prose(path.read_text(encoding="utf-8")).splitlines(), 1):
        for target in (first or second for first, second in LINK.findall(line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = unquote(target).partition("#")
            file = (path.parent / name).resolve() if name else path.resolve()
            if not file.exists() or not file.is_relative_to(root.resolve()):
                broken.append(f"{path}:{number}: {target} does not exist")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
                broken.append(f"{path}:{number}: {target} has no such heading")
    return broken
