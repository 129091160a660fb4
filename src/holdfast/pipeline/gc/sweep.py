"""What one task of garbage collection removes, and the record of it.

    meta/pipeline/gc/v1/{run}/run.json                          what was asked, and the audit that it rests on
    meta/pipeline/gc/v1/{run}/{kind}/{digest}.intent.json       keys that go, each with its reason; written before

Nothing is deleted that no intent names. An intent is named by the hash of its content, so a task that runs again writes
it again, deletes the same objects again, and changes nothing. If a run was interrupted, the next driver sweeps the same
snapshot again; until then some objects of its last intents may still be there.
"""

import hashlib
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt
from holdfast.objects.client import ambient_of
from holdfast.objects.store import ADDRESSED, Store
from holdfast.pipeline.gc.options import GcOptions

GC = "meta/pipeline/gc/v1/"
INTENT = "holdfast.gc.intent"
RUN = "holdfast.gc.run"
GROUP = 500
"""Objects in one intent."""
EXAMPLES = 3
"""Example keys in a summary, for each reason."""

Doomed = tuple[str, int, str]
"""An object that goes: its key, its size, and why."""


@dataclass(frozen=True)
class Ask:
    """What a run was asked. ``now_ns`` is the store's time; in a preview this machine's."""

    run_id: str
    apply: bool
    now_ns: int
    proof_ns: int | None = None
    """The moment up to which an audit has seen every manifest and conflict, by the store's clock; None if there is no
    such audit."""
    limit: int | None = None
    options: GcOptions = field(default_factory=GcOptions)


class Sweep:
    """The removals of one kind by one task. In a dry run everything is counted and nothing is done."""

    def __init__(self, store: Store, kind: str, ask: Ask) -> None:
        self.store = store
        self.ambient = ambient_of(store)
        self.kind = kind
        self.ask = ask
        self.options = ask.options
        self.counts: Counter[tuple[str, str]] = Counter()
        """By outcome and reason: ``removed``, ``kept``, ``did``; without a reason ``looked``, ``bytes``, ``more``."""
        self.examples: dict[str, list[str]] = {}
        self.left = ask.limit
        """How many more objects may be removed; None without a limit."""
        self._stages: tuple[list[Doomed], list[Doomed], list[Doomed]] = ([], [], [])
        """What goes first, the objects themselves, what goes last."""

    def exhausted(self) -> bool:
        """Whether no more may be removed; the result then says that there may be more."""
        if self.left is None or self.left > 0:
            return False
        self.counts["more", ""] = 1
        return True

    def room(self, wanted: int) -> int:
        """How many of ``wanted`` objects may still be removed."""
        if self.left is None or self.left >= wanted:
            return wanted
        self.counts["more", ""] = 1
        return max(0, self.left)

    def looked(self, count: int = 1) -> None:
        self.counts["looked", ""] += count

    def keep(self, why: str, key: str) -> None:
        self._count("kept", why, key)

    def did(self, what: str, key: str) -> None:
        self._count("did", what, key)

    async def remove(
        self, key: str, size: int, why: str, *, first: Sequence[Doomed] = (), also: Sequence[Doomed] = ()
    ) -> bool:
        """Remove an object, with what refers to it: ``first`` before it, ``also`` after it. False if the limit is
        reached, and all of it stays. What goes with an object does not count towards the limit.
        """
        if self.exhausted():
            return False
        self._doom([(key, size, why)])
        if self.ask.apply:
            for _, bytes_, reason in (*first, *also):
                self.counts["removed", reason] += 1
                self.counts["bytes", ""] += bytes_
            for stage, objects in zip(self._stages, (first, [(key, size, why)], also), strict=True):
                stage.extend(objects)
            if sum(map(len, self._stages)) >= GROUP:
                await self.flush()
        return True

    async def about_to(self, doomed: Sequence[Doomed]) -> None:
        """Count and record what another function is about to remove."""
        self._doom(doomed)
        if self.ask.apply:
            for start in range(0, len(doomed), GROUP):
                await self._intend(doomed[start : start + GROUP])

    async def flush(self) -> None:
        """The intent, then the deletions."""
        stages, self._stages = self._stages, ([], [], [])
        if any(stages):
            await self._intend([each for stage in stages for each in stage])
            for stage in filter(None, stages):
                await self.store.delete_many(sorted({key for key, *_ in stage}))

    def _doom(self, doomed: Sequence[Doomed]) -> None:
        for key, size, why in doomed:
            self._count("removed", why, key)
            self.counts["bytes", ""] += size
        if self.left is not None:
            self.left -= len(doomed)

    def _count(self, outcome: str, why: str, key: str) -> None:
        """The first keys of each reason are examples, so that the result does not depend on the division into tasks."""
        self.counts[outcome, why] += 1
        known = self.examples.setdefault(why, [])
        insort(known, key)
        del known[EXAMPLES:]

    async def _intend(self, doomed: Sequence[Doomed]) -> None:
        objects = [list(each) for each in sorted(doomed)]
        run_id, kind = self.ask.run_id, self.kind
        body = codec.encode({"format": INTENT, "version": 1, "run_id": run_id, "kind": kind, "objects": objects})
        key = f"{GC}{run_id}/{kind}/{hashlib.sha256(body).hexdigest()[:32]}.intent.json"
        await self.store.put(key, body, ADDRESSED)


async def begin(store: Store, run_id: str, asked: Document) -> int:
    """Record the run; returns the store's own time. Idempotent."""
    key = f"{GC}{run_id}/run.json"
    await store.put(key, codec.encode({"format": RUN, "version": 1, "run_id": run_id, **asked}), ADDRESSED)
    return (await store.head(key)).modified_ns


@dataclass(frozen=True, slots=True)
class Intent:
    kind: str
    objects: tuple[Doomed, ...]


async def intents(store: Store, run_id: str) -> AsyncIterator[Intent]:
    """What a run has removed, or was about to remove when it was interrupted."""
    async for key in store.keys(f"{GC}{run_id}/"):
        if not key.endswith(".intent.json"):
            continue
        document = codec.decode((await store.get(key)).body, key=key)
        codec.expect(document, format_name=INTENT, newest=1, key=key)
        try:
            objects = tuple((str(name), int(size), str(why)) for name, size, why in document["objects"])
            yield Intent(str(document["kind"]), objects)
        except MALFORMED as error:
            raise Corrupt(f"{key}: not an intent of garbage collection ({error!r})") from error


async def runs(store: Store) -> list[str]:
    """The recorded runs, in no order."""
    found: list[str] = []
    async for page in store.list(GC, delimiter=True):
        found += [folder.removeprefix(GC).rstrip("/") for folder in page.folders]
    return found
