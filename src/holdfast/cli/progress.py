"""What is drawn on a terminal while a command works, such as a checklist; nothing is drawn elsewhere.

It is drawn on standard error by a task on the command's own event loop, so it may read counters that the command
changes. It disappears at the end: the command prints what should remain.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.cli.output import Output, printable

if TYPE_CHECKING:
    from rich.console import Group, RenderableType  # imported late at run time: slow, and unused without a terminal
    from rich.text import Text

REFRESH_SECONDS = 0.1


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    GOOD = "good"
    BAD = "bad"


_MARKS = {State.WAITING: ("·", "dim"), State.GOOD: ("✓", "green"), State.BAD: ("✗", "bold red")}


@dataclass
class Step:
    title: str
    detail: str = ""
    state: State = State.WAITING


@dataclass
class Checklist:
    """Steps in order, and below them a line that ``footer`` returns at every drawing."""

    steps: Sequence[Step]
    footer: Callable[[], str] = lambda: ""
    _spinner: object = field(default=None, repr=False)

    def draw(self) -> "Group":
        from rich.console import Group  # noqa: PLC0415  # see above
        from rich.spinner import Spinner  # noqa: PLC0415  # see above
        from rich.table import Table  # noqa: PLC0415  # see above
        from rich.text import Text  # noqa: PLC0415  # see above

        if not isinstance(self._spinner, Spinner):
            self._spinner = Spinner("dots", style="cyan")
        table = Table.grid(padding=(0, 1))
        table.add_column(width=1)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for step in self.steps:
            running = step.state is State.RUNNING
            mark = self._spinner if running else Text(*_MARKS[step.state])
            style = "dim" if step.state is State.WAITING else "bold" if running else ""
            table.add_row(mark, Text(printable(step.title), style=style), Text(printable(step.detail), style="dim"))
        footer = Text(f"  {printable(self.footer())}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(table, footer)


def status_line(text: str) -> "Text":
    """One line to draw, cut at the width of the terminal."""
    from rich.text import Text  # noqa: PLC0415  # see above

    return Text(printable(text), no_wrap=True, overflow="ellipsis")


@asynccontextmanager
async def live(out: Output, draw: "Callable[[], RenderableType]") -> AsyncIterator[bool]:
    """Draw until the block ends; gives False where nothing is drawn."""
    console = out.console(stderr=True)
    if out.as_json or not console.file.isatty():
        yield False
        return
    from rich.live import Live  # noqa: PLC0415  # see above

    with Live(console=console, auto_refresh=False, transient=True, get_renderable=draw) as display:

        async def refresh() -> None:
            while True:
                display.refresh()
                await asyncio.sleep(REFRESH_SECONDS)

        refreshing = asyncio.ensure_future(refresh())
        try:
            yield True
        finally:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)


class Watch:
    """The step that a job is at, drawn as one line. Without a terminal ``opening`` and steps without a count of tasks
    are printed, such as that Spark starts.
    """

    def __init__(self, out: Output, opening: str | None = None) -> None:
        self._out = out
        self._opening = opening
        self._line = "looking for what is due"
        self._drawn = False

    def say(self, step: str, done: int, total: int) -> None:
        self._line = f"{step}  {done}/{total} tasks" if total else step
        if not total and not self._drawn:
            self._out.note(step)

    @asynccontextmanager
    async def shown(self) -> AsyncIterator["Watch"]:
        async with live(self._out, lambda: status_line(self._line)) as self._drawn:
            if self._opening is not None and not self._drawn:
                self._out.note(self._opening)
                self._opening = None
            yield self
