"""How an audit divides the key space: spans of keys, cut between folders, never more than so many.

A span is everything under a prefix after one key and up to another. Whoever plans lists folders alone, page by page,
and holds no more than the cuts: when there are too many, every second one is forgotten. A task that has looked at
enough hands back the rest of its span, so one large folder keeps nobody waiting for ever.
"""

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from itertools import pairwise

from holdfast.base.codec import Document
from holdfast.objects.store import Entry, Store

MOST_CUTS = 1024
"""Per prefix; the driver's memory does not grow with the store."""


@dataclass(frozen=True, slots=True)
class Span:
    space: str
    """What the keys are; see ``audit_task``."""
    prefix: str
    after: str | None = None
    until: str | None = None
    """The first key that does not belong to it."""

    def document(self) -> Document:
        return asdict(self)

    @classmethod
    def of(cls, document: Document) -> "Span":
        return cls(**document)

    def holds(self, key: str) -> bool:
        return key.startswith(self.prefix) and (self.after or "") < key and (self.until is None or key < self.until)

    def moved(self, prefix: str) -> "Span":
        """The same part of another prefix, whose keys go on in the same way."""
        after = None if self.after is None else prefix + self.after.removeprefix(self.prefix)
        until = None if self.until is None else prefix + self.until.removeprefix(self.prefix)
        return Span(self.space, prefix, after, until)


def past(folder: str) -> str:
    """The first key that is in neither ``folder`` nor before it."""
    return folder[:-1] + "0"  # the character after the slash


async def divided(store: Store, space: str, prefix: str, most: int = MOST_CUTS) -> list[Span]:
    """Spans of one prefix, cut between its folders; none if there is nothing. One LIST per thousand folders."""
    cuts: list[str] = []
    stride, since, there = 1, 0, False
    async for page in store.list(prefix, delimiter=True):
        there = there or bool(page.entries or page.folders)
        for folder in page.folders:
            since += 1
            if since >= stride:
                cuts.append(past(folder))
                since = 0
            if len(cuts) > most:
                cuts, stride = cuts[1::2], stride * 2
    if not there:
        return []
    bounds: list[str | None] = [None, *cuts[:-1], None] if not since else [None, *cuts, None]
    return [Span(space, prefix, after, until) for after, until in pairwise(bounds)]


async def entries(store: Store, span: Span) -> AsyncIterator[list[Entry]]:
    """What the span holds, page by page."""
    async for page in store.list(span.prefix, after=span.after):
        within = [each for each in page.entries if span.until is None or each.key < span.until]
        if within:
            yield within
        if len(within) < len(page.entries):
            return
