"""Which redactions a read takes into account, for every file that it reads.

A redaction rewrites files of commits (``maintain.redact``). A read that used some files from before it and some from
after it would return what never existed: an older row in place of one that was destroyed. Two rules prevent this, and
neither costs a request:

* *A read at a head does not use what a later commit has destroyed.* A rewritten file carries the number of the commit
  that ordered it; so do its statistics, and every snapshot made of it. If that number is higher than the latest
  redaction at the read's head, the read raises ``Overtaken`` and is repeated at the current head.
* *A read at a head does not show what a commit up to that head ordered to be destroyed.* While an order is unfinished,
  the read applies it to its own copy of each file.

So the answer of a read is the state at one head, between the beginning and the end of the read.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.stored_rows import mark_of, redacted
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.redactions import Redaction, finished, redaction_of
from holdfast.ontology.types.errors import Overtaken
from holdfast.ontology.types.refs import Place, TypeId

T = TypeVar("T")

TRIES = 8
"""How often a read is made, if each time yet another redaction overtakes it."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """A redaction, and the commit that ordered it."""

    place: Place
    redaction: Redaction


@dataclass(frozen=True, slots=True)
class RedactionFence:
    number: int = 0
    """The latest commit up to the read's head that destroys payload."""
    pending: tuple[Ordered, ...] = ()
    """The orders up to that head that are not finished, oldest first."""

    def check(self, mark: int, path: str) -> None:
        """``Overtaken`` if a file with this mark was rewritten after the read's head."""
        if mark > self.number:
            raise Overtaken(f"{path}: commit {mark} destroyed payload in it, after the commit that is read")

    def check_all(self, entries: Iterable[Entry]) -> None:
        """Check statistics too, because a file that they rule out is not read."""
        for entry in entries:
            if entry.stats is not None and entry.stats.redacted > self.number:
                self.check(entry.stats.redacted, entry.path)

    def concerns(self, type_id: TypeId) -> bool:
        """Whether payload of this type is still to be destroyed."""
        return any(each.redaction.type_id == type_id for each in self.pending)

    def seen(self, body: bytes, path: str, type_id: TypeId) -> bytes:
        """A file as it is at the read's head. Blocking."""
        self.check(mark_of(body, path), path)
        for each in self.pending:
            if each.redaction.type_id == type_id:
                body = redacted(body, path, each.redaction, each.place.commit_id) or body
        return body


async def fence_of(store: Store, chain: Chain, ledger: Ledger) -> RedactionFence:
    """The fence of a read at the ledger's commit. One request while an order is unfinished, otherwise none."""
    latest = ledger.redacted
    if latest is None:
        return RedactionFence()
    if await chain.settled(latest):
        return RedactionFence(latest.commit_id)
    pending: list[Ordered] = []
    place: Place | None = latest
    while place is not None and not await finished(store, place):  # it is finished only after all earlier ones
        if (redaction := redaction_of(await chain.manifest(place))) is not None:
            pending.append(Ordered(place, redaction))
        place = await chain.previous_redaction(place)
    return RedactionFence(latest.commit_id, tuple(reversed(pending)))


async def retry_overtaken(read: Callable[[], Awaitable[T]]) -> T:
    """Run a read that reads the head itself; repeat it if a redaction overtakes it."""
    for _ in range(TRIES - 1):
        try:
            return await read()
        except Overtaken:
            continue
    return await read()
