"""Which redactions a read knows, and what that means for every file that it reads.

Files of commits change when payload is destroyed (``redact``), so a read that takes some files from before that and
some from after it would return what was never there: an older row in the place of one that is gone. Two rules prevent
it, and neither costs a request:

* *A read at a head never uses what a later commit has destroyed.* A file that was rewritten bears the number of the
  commit that ordered it, and so do its statistics and every snapshot made of it. One above what the read knows of ends
  the read with ``Overtaken``: it begins anew at the head of now, which has that commit.
* *A read at a head shows nothing that a commit up to it ordered to be destroyed.* While an order is not carried
  through, the read does to its own copy of a file what will be done to the file.

So whatever a read gives is what there is at one head, between its begin and its end.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.stored_rows import mark_of, redacted
from holdfast.ontology.format.redactions import Redaction, finished, redaction_of
from holdfast.ontology.format.stats import FileStats
from holdfast.ontology.types.errors import Overtaken
from holdfast.ontology.types.refs import Place, TypeId

T = TypeVar("T")

TRIES = 8
"""How often a read begins anew, each time because yet another commit has destroyed something under it."""


class Described(Protocol):
    """An entry of an index."""

    @property
    def path(self) -> str: ...
    @property
    def stats(self) -> FileStats | None: ...


@dataclass(frozen=True, slots=True)
class Ordered:
    """A redaction that was ordered and is not finished."""

    commit_id: int
    redaction: Redaction


@dataclass(frozen=True, slots=True)
class RedactionFence:
    number: int = 0
    """The latest commit that destroys payload, of those up to the head that the read is at."""
    pending: tuple[Ordered, ...] = ()
    """Orders up to the same head of which some files may not know yet; oldest first."""

    def check(self, mark: int, path: str) -> None:
        if mark > self.number:
            raise Overtaken(f"{path}: commit {mark} has destroyed payload in it, which this read knows nothing of")

    def check_all(self, entries: Iterable[Described]) -> None:
        """Check the statistics too: a file that they exclude is never read."""
        for entry in entries:
            if entry.stats is not None and entry.stats.redacted > self.number:
                self.check(entry.stats.redacted, entry.path)

    def concerns(self, type_id: TypeId) -> bool:
        return any(each.redaction.type_id == type_id for each in self.pending)

    def seen(self, body: bytes, path: str, type_id: TypeId) -> bytes:
        """A file as it is at the read's head. Blocking."""
        self.check(mark_of(body, path), path)
        return self.carried_out(body, path, type_id)

    def carried_out(self, body: bytes, path: str, type_id: TypeId) -> bytes:
        for each in self.pending:
            if each.redaction.type_id == type_id:
                body = redacted(body, path, each.redaction, each.commit_id) or body
        return body


async def fence_of(store: Store, chain: Chain, now: Ledger) -> RedactionFence:
    """At the head of a ledger. One request while an order is under way; none otherwise."""
    latest = now.redacted
    if latest is None:
        return RedactionFence()
    if await chain.settled(latest):
        return RedactionFence(latest.commit_id)
    pending: list[Ordered] = []
    place: Place | None = latest
    while place is not None and not await finished(store, place):
        manifest = await chain.read(place)
        if (redaction := redaction_of(manifest)) is not None:
            pending.append(Ordered(place.commit_id, redaction))
        place = (await chain.ledger_of(manifest.parent)).redacted
    return RedactionFence(latest.commit_id, tuple(reversed(pending)))


async def retry_overtaken(read: Callable[[], Awaitable[T]]) -> T:
    """Run a read that pins a head by itself; repeat it if it was overtaken."""
    for _ in range(TRIES - 1):
        try:
            return await read()
        except Overtaken:
            continue
    return await read()
