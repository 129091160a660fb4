"""What a task of an audit works with: the store, how closely it looks, its tally, and how much it may take on."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.base.aio import map_bounded
from holdfast.base.audit import Look, Tally
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.audit_spans import Span, entries
from holdfast.telemetry.frame import Limits

AT_ONCE = 16
KEYS_AT_ONCE = 20_000
"""That one task looks at; the rest of its spans it hands back."""

Check = Callable[[Tally], Awaitable[object]]


@dataclass(slots=True)
class Desk:
    store: Store
    look: Look
    limits: Limits
    reconciled_ns: int = 0
    counted: Mapping[str, int] = field(default_factory=dict)
    windows: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)
    room: int = KEYS_AT_ONCE

    async def sure(self, check: Check) -> None:
        """Make a check; what it finds is believed if it finds it again: somebody may have been at work."""
        tally = Tally()
        await check(tally)
        if tally.findings:
            again = Tally()
            await check(again)
            again.keep(tally.findings)
            tally = again
        self.tally.take(tally)

    async def each(self, items: Iterable[Entry], check: Callable[[Entry, Tally], Awaitable[object]]) -> None:
        """Check everything that is old enough to be judged."""
        judged = [each for each in items if self.look.judges(each.modified_ns)]
        await map_bounded(judged, lambda entry: self.sure(lambda tally: check(entry, tally)), limit=AT_ONCE)

    async def walk(self, span: Span, check: Callable[[Entry, Tally], Awaitable[object]]) -> Span | None:
        """Check every key of a span; the rest of it, if it is more than this task takes on."""
        async for page in entries(self.store, span):
            await self.each(page, check)
            self.room -= len(page)
            if self.room <= 0:
                return replace(span, after=page[-1].key)
        return None
