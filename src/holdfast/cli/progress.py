"""The line that is drawn on a terminal while a command works; nothing is drawn elsewhere.

It is drawn on standard error by a task on the command's own event loop, so it may read counters that the command
changes. It disappears at the end: the command prints what should remain.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.cli.output import Output, printable

REFRESH_SECONDS = 0.1


@asynccontextmanager
async def live(out: Output, line: Callable[[], str]) -> AsyncIterator[bool]:
    """Draw the line, cut at the width of the terminal, until the block ends; gives False where nothing is drawn."""
    console = out.console(stderr=True)
    if out.as_json or not console.file.isatty():
        yield False
        return
    from rich.live import Live  # noqa: PLC0415  # slow to import, and unused without a terminal
    from rich.text import Text  # noqa: PLC0415  # as above

    def draw() -> Text:
        return Text(printable(line()), no_wrap=True, overflow="ellipsis")

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
    """The step that a job is at, as one line. Without a terminal ``opening`` and steps without a count of tasks are
    printed, such as that Spark starts.
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
        async with live(self._out, lambda: self._line) as self._drawn:
            if self._opening is not None and not self._drawn:
                self._out.note(self._opening)
                self._opening = None
            yield self
