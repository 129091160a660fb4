"""What is drawn on a terminal while a command works, such as a checklist; nothing is drawn elsewhere.

It is drawn on standard error by a task on the command's own loop: no thread, so it may look at counters that the work
is changing. What remains to be read afterwards is the command's to print.
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
    """Steps in order, and a line below them: ``footer`` is called at every drawing."""

    steps: Sequence[Step]
    footer: Callable[[], str] = lambda: ""
    notes: Sequence[str] = ()
    """Lines between the steps and the footer; the list may grow."""
    _spinner: object = field(default=None, repr=False)

    def begin(self, number: int) -> None:
        self.steps[number].state = State.RUNNING

    def end(self, number: int, *, good: bool, detail: str) -> None:
        self.steps[number].state = State.GOOD if good else State.BAD
        self.steps[number].detail = detail

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
        notes = [Text(f"  {printable(note)}", no_wrap=True, overflow="ellipsis") for note in self.notes]
        return Group(
            table, *notes, Text(f"  {printable(self.footer())}", style="dim", no_wrap=True, overflow="ellipsis")
        )


def status_line(text: str) -> "Text":
    """One line to draw, cut at the width of the terminal."""
    from rich.text import Text  # noqa: PLC0415  # see above

    return Text(printable(text), no_wrap=True, overflow="ellipsis")


@asynccontextmanager
async def live(out: Output, draw: "Callable[[], RenderableType]") -> AsyncIterator[bool]:
    """Draw until the block ends; the drawing then disappears. False where nothing is drawn."""
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

        ticking = asyncio.ensure_future(refresh())
        try:
            yield True
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
