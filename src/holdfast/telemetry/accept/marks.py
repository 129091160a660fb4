"""How far a collector has told others what it acknowledged: a small object per process, written again and again.

A collector acknowledges first and tells of it after (``references``), so whoever follows it lacks the last moment, and
for ever if the collector is killed. Its **mark** says up to when everything is told; a mark that stays as it is tells
that its collector is gone, and that somebody should look for what it left (``heard``). It is begun before the first
batch is accepted, written every ``every_ms``, and ended with the process.

A collector that could not write its mark for twice as long (it was paused, or the store was) may have been given up by
others, who have looked and will not look again. So it writes the mark before it acknowledges anything more; others wait
three times as long before they look, so what it acknowledged until then was in the store by that time. If the mark
cannot be written even then, the batch is acknowledged all the same: it is accepted, and that counts for more.

Errors: ``begin`` raises what the store does; later failures are logged, and the next write says everything.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Ambiguous, Corrupt, Denied, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.store import OVERWRITE, Object, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Answer, Submission
from holdfast.telemetry.accept.collector import Acceptor
from holdfast.telemetry.accept.lasting import lasting
from holdfast.telemetry.accept.references import References

SCHEMA = "holdfast.collector_mark.v1"
LAPSES_AFTER = 2
SILENT_AFTER = 3
"""Times ``every_ms``."""
MOST_FILLER = 1 << 20
MOST_MS = 86_400_000

_MS = 1_000_000
_log = logger("ingest")


@dataclass(frozen=True, slots=True)
class Mark:
    session: str
    """Of one process: a collector that is started again has another."""
    collector_id: str
    through_unix_ns: int
    """Everything that it acknowledged before, by its own clock, is gathered or referred to."""
    unlisted: int
    """But for so many batches since it began: the manifests alone tell of them, if they were accepted at all."""
    begun_unix_ns: int
    """When it began, by its own clock."""
    every_ms: int
    ended: bool = False
    written_unix_ns: int = 0
    """When it looked at what it has told, to write this, by its own clock."""

    @property
    def key(self) -> str:
        return layout.mark_key(self.session)

    @property
    def silent_after_ns(self) -> int:
        """It is written long before it is so old, if its collector is alive."""
        return SILENT_AFTER * self.every_ms * _MS

    def encode(self, filler: str = "") -> bytes:
        """``filler`` makes it longer, and says nothing."""
        document: Document = {
            "schema": SCHEMA,
            "session": self.session,
            "collector_id": self.collector_id,
            "through_unix_ns": self.through_unix_ns,
            "unlisted": self.unlisted,
            "begun_unix_ns": self.begun_unix_ns,
            "every_ms": self.every_ms,
            "ended": self.ended,
            "written_unix_ns": self.written_unix_ns,
        }
        return codec.encode({**document, "filler": filler} if filler else document)

    @classmethod
    def read(cls, found: Object) -> "Mark":
        document = codec.decode_schema(found.body, SCHEMA, key=found.key)
        try:
            mark = cls(
                session=str(document["session"]),
                collector_id=str(document["collector_id"]),
                through_unix_ns=int(document["through_unix_ns"]),
                unlisted=int(document["unlisted"]),
                begun_unix_ns=int(document["begun_unix_ns"]),
                every_ms=int(document["every_ms"]),
                ended=bool(document["ended"]),
                written_unix_ns=int(document["written_unix_ns"]),
            )
        except MALFORMED as error:
            raise Corrupt(f"{found.key}: not the mark of a collector ({error!r})") from error
        if mark.every_ms > MOST_MS:
            raise Corrupt(f"{found.key}: not the mark of a collector: it is written every {mark.every_ms} ms")
        return mark


class Marks:
    """The mark of this process. ``async with`` begins it, keeps it, and ends it."""

    def __init__(
        self, store: Store, ambient: Ambient, references: References, *, collector_id: str, every_ms: int
    ) -> None:
        self.session = ambient.ids.unique()
        self._store = store
        self._clock = ambient.clock
        self._references = references
        self._collector_id = collector_id
        self._every_ms = every_ms
        self._begun_ns = ambient.clock.wall_ns()
        self._written_ns = (0, 0)
        self._failed: str | None = None
        self._refused_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def lapsed(self) -> bool:
        """Whether others may have given this collector up. By either clock: one of them may have stood still."""
        wall_ns, monotonic_ns = self._written_ns
        age_ns = max(self._clock.wall_ns() - wall_ns, self._clock.monotonic_ns() - monotonic_ns)
        return age_ns > LAPSES_AFTER * self._every_ms * _MS

    @property
    def problem(self) -> str | None:
        """Why the store takes nothing from this collector, by what it tried to write last."""
        if self._failed is None and self.lapsed:
            return "the store has not taken the mark of this collector for long"
        return self._failed

    def accepted(self) -> None:
        """A batch was taken: none but the newest write counts."""
        self._failed, self._refused_bytes = None, 0

    def refused(self, why: str, size: int) -> None:
        """A batch of so many bytes was not taken. The next mark is as long: a store that is nearly full has room for
        a short one."""
        self._failed, self._refused_bytes = why, min(size, MOST_FILLER)

    async def write(self, *, ended: bool = False) -> None:
        began = (self._clock.wall_ns(), self._clock.monotonic_ns())
        owed = self._references
        mark = Mark(
            session=self.session,
            collector_id=self._collector_id,
            through_unix_ns=owed.through_ns(),
            unlisted=owed.unlisted + (len(owed) if ended else 0),
            begun_unix_ns=self._begun_ns,
            every_ms=self._every_ms,
            ended=ended,
            written_unix_ns=began[0],
        )
        filler = hashlib.shake_256(b"nothing").hexdigest(self._refused_bytes // 2) if self._failed else ""
        await self._store.put(mark.key, mark.encode(filler), OVERWRITE)
        self._written_ns = began
        self._failed = None

    async def renew(self) -> None:
        """Write it now, once for all who wait for that."""
        if self._writing is None:
            self._writing = asyncio.create_task(self._try_to_write())
        await asyncio.shield(self._writing)

    async def _try_to_write(self) -> None:
        try:
            await self.write()
        except HoldfastError as error:
            self._failed = str(error)
            _log.warning("the mark of this collector could not be written: %s", error)
        finally:
            self._writing = None

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._every_ms / 1_000)
            await self.renew()

    async def __aenter__(self) -> Self:
        await self.write()
        self._keeper = asyncio.create_task(lasting("the mark of this collector", self._keep), name="mark")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for task in (self._keeper, self._writing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self.write(ended=True)
        except HoldfastError as failure:
            _log.warning("the mark of this collector could not be ended: %s", failure)


class Marked:
    """An acceptor whose answers others will hear of, or look for."""

    def __init__(self, inner: Acceptor, marks: Marks) -> None:
        self._inner = inner
        self._marks = marks

    async def accept(self, submission: Submission) -> Answer:
        try:
            answer = await self._inner.accept(submission)
        except (Unavailable, Ambiguous, Denied) as error:
            self._marks.refused(str(error), len(submission.body))
            raise
        except asyncio.CancelledError:
            self._marks.refused("the store did not take a batch in time", len(submission.body))
            raise
        self._marks.accepted()
        if self._marks.lapsed:
            await self._marks.renew()
        return answer
