"""The record of garbage collection: an intent before objects are removed, and the outcome after.

    meta/pipeline/gc/v1/{run}/run.json                          what was asked, and the proof that it rests on
    meta/pipeline/gc/v1/{run}/{kind}/{digest}.intent.json       keys that are about to go, each with its reason
    meta/pipeline/gc/v1/{run}/{kind}/{digest}.done.json         they are gone

An intent is named by the hash of its content, so a task that runs again writes it again, deletes the same objects
again, and changes nothing. An intent without an outcome was left by an interrupted task: the driver that resumes the
run, or the next run, looks up whether its keys still exist and records it (``settle``).
"""

import hashlib
from bisect import insort
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import ADDRESSED, Store
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.jobs.audited import Scope, latest_complete

GC = "meta/pipeline/gc/v1/"
INTENT = "holdfast.gc.intent"
DONE = "holdfast.gc.done"
RUN = "holdfast.gc.run"
GROUP = 500
"""Objects in one intent."""
EXAMPLES = 3
"""Example keys in a summary, for each reason."""
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Proof:
    """A completed audit of every manifest and every conflict; without one no blob counts as an orphan. An audit is
    valid up to the moment at which it began to list, by the store's own clock. A blob is old enough if its retry
    horizon had passed by then: a batch that an agent resent in time was accepted before the audit listed it.
    """

    through_ns: int
    key: str = ""

    def document(self) -> Document:
        return {"audit": self.key, "through_unix_ns": self.through_ns}


async def latest_proof(store: Store) -> Proof | None:
    audited = await latest_complete(store, Scope.INGEST)
    return None if audited is None else Proof(audited.through_unix_ns, audited.key)


@dataclass(slots=True)
class Tally:
    """The outcome for the objects that were checked, by reason."""

    looked: int = 0
    removed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    bytes: int = 0
    kept: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    did: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    examples: dict[str, list[str]] = field(default_factory=dict)
    more: bool = False
    """Whether the limit was reached."""

    def note(self, why: str, key: str) -> None:
        """Keep the first keys of each reason, in order, so that the result does not depend on the division into
        tasks."""
        known = self.examples.setdefault(why, [])
        insort(known, key)
        del known[EXAMPLES:]


class Sweep:
    """One task's removals. In a dry run everything is counted and nothing is done."""

    def __init__(self, store: Store, ask: Ask) -> None:
        self.store = store
        self.ask = ask
        self.tally = Tally()
        self.left = ask.limit
        """How many more objects may be removed; None without a limit."""
        self._doomed: list[tuple[str, int, str]] = []
        self._first: set[str] = set()
        """Keys that are removed before the others."""

    @property
    def spent(self) -> bool:
        """Whether no more may be removed."""
        return self.left is not None and self.left <= 0

    def keep(self, why: str, key: str) -> None:
        self.tally.kept[why] += 1
        self.tally.note(why, key)

    def did(self, what: str, key: str) -> None:
        self.tally.did[what] += 1
        self.tally.note(what, key)

    async def remove(self, key: str, size: int, why: str) -> bool:
        """Remove an object, with a record; False if the limit is reached, and it stays."""
        if self.spent:
            self.tally.more = True
            return False
        if self.left is not None:
            self.left -= 1
        self.tally.removed[why] += 1
        self.tally.bytes += size
        self.tally.note(why, key)
        if self.ask.apply:
            self._doomed.append((key, size, why))
            if len(self._doomed) >= GROUP:
                await self.flush()
        return True

    async def remove_derived(self, key: str, size: int, why: str, *, first: bool = False) -> None:
        """Remove an object that belongs to a removed one; it does not count towards the limit. An object that refers to
        the removed one goes ``first``."""
        if self.ask.apply:
            if first:
                self._first.add(key)
            self.tally.removed[why] += 1
            self.tally.bytes += size
            self._doomed.append((key, size, why))
            if len(self._doomed) >= GROUP:
                await self.flush()

    def room(self, wanted: int) -> int:
        """How many of ``wanted`` objects may still be removed."""
        if self.left is None or self.left >= wanted:
            return wanted
        self.tally.more = True
        return max(0, self.left)

    async def about_to(self, doomed: list[tuple[str, int, str]]) -> list[str]:
        """Count and record what another function is about to remove; returns the keys of the intents, for
        ``concluded``."""
        for key, size, why in doomed:
            self.tally.removed[why] += 1
            self.tally.bytes += size
            self.tally.note(why, key)
        if self.left is not None:
            self.left -= len(doomed)
        if not self.ask.apply:
            return []
        groups = [doomed[start : start + GROUP] for start in range(0, len(doomed), GROUP)]
        return [await intend(self.store, self.ask.run_id, self.ask.kind, group) for group in groups]

    async def concluded(self, intents: list[str], gone: int) -> None:
        for key in intents:
            await conclude(self.store, key, gone=gone, kept=[])

    async def flush(self) -> None:
        """Intent, deletion, end: in this order."""
        if not self._doomed:
            return
        doomed, self._doomed = self._doomed, []
        first, self._first = self._first, set()
        key = await intend(self.store, self.ask.run_id, self.ask.kind, doomed)
        if first:
            await self.store.delete_many(sorted(first))
        await self.store.delete_many([each[0] for each in doomed if each[0] not in first])
        await conclude(self.store, key, gone=len(doomed), kept=[])


async def begin(store: Store, run_id: str, asked: Document) -> int:
    """Record the run; returns the store's own time. Idempotent."""
    key = f"{GC}{run_id}/run.json"
    await store.put(key, codec.encode({"format": RUN, "version": 1, "run_id": run_id, **asked}), ADDRESSED)
    return (await store.head(key)).modified_ns


async def intend(store: Store, run_id: str, kind: str, doomed: list[tuple[str, int, str]]) -> str:
    """Record what is about to be removed; returns the key of the intent."""
    objects = [list(each) for each in sorted(doomed)]
    body = codec.encode({"format": INTENT, "version": 1, "run_id": run_id, "kind": kind, "objects": objects})
    key = f"{GC}{run_id}/{kind}/{hashlib.sha256(body).hexdigest()[:32]}.intent.json"
    await store.put(key, body, ADDRESSED)
    return key


async def conclude(store: Store, intent_key: str, *, gone: int, kept: list[str]) -> None:
    """Record the outcome of an intent."""
    document = {"format": DONE, "version": 1, "intent": intent_key, "gone": gone, "kept": kept}
    await store.put(_done_key(intent_key), codec.encode(document), ADDRESSED)


@dataclass(frozen=True, slots=True)
class Intent:
    key: str
    run_id: str
    kind: str
    objects: tuple[tuple[str, int, str], ...]
    concluded: bool = True


async def intents(store: Store, run_id: str, *, unconcluded: bool = False) -> AsyncIterator[Intent]:
    """The intents of a run; only those without an outcome, if ``unconcluded``."""
    folder = f"{GC}{run_id}/"
    keys = {key async for key in store.keys(folder)}
    for key in sorted(keys):
        if not key.endswith(".intent.json") or (unconcluded and _done_key(key) in keys):
            continue
        document = codec.decode((await store.get(key)).body, key=key)
        codec.expect(document, format_name=INTENT, newest=1, key=key)
        try:
            objects = tuple((str(name), int(size), str(why)) for name, size, why in document["objects"])
            yield Intent(key, str(document["run_id"]), str(document["kind"]), objects, _done_key(key) in keys)
        except MALFORMED as error:
            raise Corrupt(f"{key}: not an intent of garbage collection ({error!r})") from error


async def settle(store: Store, run_id: str) -> int:
    """Look up and record the outcome of intents that have none; returns how many there were."""
    count = 0
    async for intent in intents(store, run_id, unconcluded=True):
        there = await map_bounded([key for key, *_ in intent.objects], lambda key: _there(store, key), limit=AT_ONCE)
        kept = [key for (key, *_), found in zip(intent.objects, there, strict=True) if found]
        await conclude(store, intent.key, gone=len(intent.objects) - len(kept), kept=kept)
        count += 1
    return count


async def runs(store: Store) -> list[str]:
    """The recorded runs, in no order."""
    found: list[str] = []
    async for page in store.list(GC, delimiter=True):
        found += [folder.removeprefix(GC).rstrip("/") for folder in page.folders]
    return found


async def _there(store: Store, key: str) -> bool:
    if key.endswith("/"):  # the folder of a run, whose tombstone stays
        return len([found async for found in store.keys(key)]) > 1
    try:
        await store.head(key)
    except NotFound:
        return False
    return True


def _done_key(intent_key: str) -> str:
    return f"{intent_key.removesuffix('.intent.json')}.done.json"
