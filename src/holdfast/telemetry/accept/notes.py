"""The notes of a spool: what has landed, by identity, over restarts, for as long as it is to be remembered.

    {n}.log              notes in the order in which they came, appended and forced to disk
    {first}-{last}.run   notes of those logs, sorted (``note_run``)
    collectors.json      names of collectors, by the number that notes have for them

What the newest log holds is in memory too. When it is long it goes into a run, together with the notes of the last run
as long as that is small and of one day: so there are few files, memory is bounded whatever their number, and what is
old goes by whole files.

A note is durable when ``add`` returns. A run is durable before the logs in it are removed, and what a crash has left of
those is known by its numbers. A torn end of a log is what nobody was told of. Damage hides the notes that it hits and
no other: a batch whose note is lost is found out when it lands.

Most batches are new, and most of those follow upon the last one of their source: that there is no note of one is known
from memory (``_highest``). Errors are those of the disk, ``Unavailable`` most of all.
"""

import asyncio
import re
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.aio import blocking
from holdfast.base.clock import Clock
from holdfast.base.errors import Corrupt, HoldfastError
from holdfast.base.telemetry import logger
from holdfast.telemetry.accept import note as notes
from holdfast.telemetry.accept import note_run as runs
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.note import KEY_BYTES, NOTE_BYTES, SOURCE_BYTES, START_BYTES
from holdfast.telemetry.accept.note_run import Run
from holdfast.telemetry.folder import Folder
from holdfast.telemetry.identity import BatchIdentity

COLLECTORS = "collectors.json"
MOST_COLLECTORS = 1_000
NOBODY = "unknown"
DAY_NS = 86_400 * 1_000_000_000

_LOG = re.compile(r"(\d{12})\.log")
_ABOVE_ALL = b"\xff" * (KEY_BYTES - SOURCE_BYTES)
_log = logger("ingest")


@dataclass(frozen=True, slots=True)
class NotesOptions:
    log_notes: int = 16_384
    """In memory, at some 300 bytes each."""
    run_notes: int = 262_144
    """A run that has as many stays as it is."""
    run_span_ns: int = DAY_NS
    """From the oldest to the newest of a run: what is old goes by whole runs."""
    sources: int = 65_536
    """Of which it is known in memory how far they have come."""


class Notes:
    """In one folder, which belongs to this process alone. ``load`` comes first."""

    def __init__(self, folder: Folder, clock: Clock, options: NotesOptions = NotesOptions()) -> None:  # noqa: B008  # frozen
        self._folder = folder
        self._clock = clock
        self._options = options
        self._writing = asyncio.Lock()
        self._recent: dict[bytes, bytes] = {}
        """What is in logs and in no run, by key."""
        self._logs: list[int] = []
        self._log_bytes = 0
        """Of the last log: what counts of it."""
        self._spill_at = options.log_notes
        self._runs: tuple[Run, ...] = ()
        """The oldest first. Another tuple whenever they are others."""
        self._highest: dict[bytes, bytes] = {}
        """Of a source: no note in a run has a greater first number. Empty bytes: there is none."""
        self._collectors: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._recent) + sum(run.count for run in self._runs)

    async def load(self) -> None:
        names = await self._folder.names()
        found = {name: await runs.opened(self._folder, name) for name in names if runs.range_in(name)}
        good = [run for run in found.values() if run is not None]
        whole = [run for run in good if not any(other.covers(run.first, run.last) for other in good if other != run)]
        for run in whole:
            await self._folder.fsync(run.name)  # before anything goes that is in it
        self._runs = tuple(sorted(whole, key=lambda run: run.first))
        for run in good:
            if run not in whole:
                await self._folder.remove(run.name)
        for name in names:
            if (log := _LOG.fullmatch(name)) is not None:
                await self._load_log(int(log[1]))
        for name in [name for name, run in found.items() if run is None]:
            await self._salvage(name)
        body = await self._folder.read(COLLECTORS)
        try:
            known = [] if body is None else codec.decode(body, key=COLLECTORS)["collectors"]
            self._collectors = {_number_of(name): name for name in known}
        except (Corrupt, KeyError, TypeError, AttributeError) as error:
            _log.error("%s: names of collectors are lost: %s", COLLECTORS, error)

    async def find(self, identity: BatchIdentity) -> AcceptedManifest | None:
        """What landed under this identity, if it is remembered."""
        key = notes.key_of(identity)
        while True:
            found, among = self._recent.get(key), self._runs
            if found is not None or not among or self._beyond(key):
                break
            found = await self._among(among, key)
            if found is not None or among is self._runs:
                break  # else what was looked through was not all there was, at no time
        noted = None if found is None else notes.read(found)
        return None if noted is None else noted.manifest(identity, self._collectors.get(noted.collector, NOBODY))

    async def add(self, manifests: Collection[AcceptedManifest]) -> None:
        """Take note of what has landed."""
        async with self._writing:
            await self._know(sorted({manifest.collector_id for manifest in manifests}))
            now = self._clock.wall_ns()
            written = [notes.write(one, _number_of(one.collector_id), now) for one in manifests]
            await self._append(written)
            if len(self._recent) >= self._spill_at:
                await self._spilled()

    async def forget(self, before_ns: int, needed: Iterable[BatchIdentity] = ()) -> int:
        """Drop what landed before then, by whole files, so that some of it stays a day longer; how many notes went.
        Those that are ``needed`` stay."""
        async with self._writing:
            now = self._clock.wall_ns()
            if self._recent and min(map(notes.landed_at, self._recent.values())) < now - self._options.run_span_ns:
                await self._spilled()
            old = [at for at, run in enumerate(self._runs) if run.newest_ns < before_ns]
            # A clock that was ahead for a while left times that never come: what came after tells how old these are.
            ahead = [at for at, run in enumerate(self._runs) if run.newest_ns > now and at < max(old, default=0)]
            recent = bool(self._recent) and max(map(notes.landed_at, self._recent.values())) < before_ns
            return await self._drop([self._runs[at] for at in {*old, *ahead}], needed, recent=recent)

    async def shed(self, needed: Iterable[BatchIdentity] = ()) -> int:
        """Drop the older half, for want of room."""
        async with self._writing:
            return await self._drop(self._runs[: (len(self._runs) + 1) // 2], needed, recent=not self._runs)

    # Looking

    def _beyond(self, key: bytes) -> bool:
        """Whether memory alone tells that no run has a note of it."""
        highest = self._highest.get(key[:SOURCE_BYTES])
        return highest is not None and _start(key) > highest

    async def _among(self, among: Sequence[Run], key: bytes) -> bytes | None:
        source = key[:SOURCE_BYTES]
        if source not in self._highest:
            last = await self._blocks(among, source + _ABOVE_ALL)
            before = [runs.at_most(block, source + _ABOVE_ALL) for block in last]
            highest = max((_start(each) for each in before if each and each.startswith(source)), default=b"")
            if among is self._runs:
                self._highest[source] = highest
                if len(self._highest) > self._options.sources:
                    del self._highest[next(iter(self._highest))]
            if _start(key) > highest:
                return None
        for block in await self._blocks(among, key):
            found = runs.exactly(block, key)
            if found is not None and notes.is_whole(found):
                return found
        return None

    async def _blocks(self, among: Sequence[Run], key: bytes) -> list[bytes]:
        spans = [(run.name, *span) for run in among if (span := run.span_of(key)) is not None]
        return await self._folder.read_pieces(spans)

    # Writing: whoever calls these holds ``_writing``

    async def _append(self, written: Sequence[bytes]) -> None:
        if not written:
            return
        if not self._logs:
            self._logs.append(self._next())
            self._log_bytes = 0
        data = b"".join(written)
        await self._folder.append(_log_name(self._logs[-1]), self._log_bytes, data)
        self._log_bytes += len(data)
        self._recent.update((each[:KEY_BYTES], each) for each in written)

    async def _spilled(self) -> None:
        """Bring the logs into a run. Where that fails they go on growing, and it is tried again later."""
        try:
            await self._spill()
        except HoldfastError as error:
            self._spill_at = len(self._recent) + self._options.log_notes // 16 + 1
            _log.warning("notes of %d batches are not sorted yet: %s", len(self._recent), error)

    async def _spill(self) -> None:
        pieces, first, last = list(self._recent.values()), self._logs[0], self._logs[-1]
        before = self._runs[-1] if self._runs and self._fits(self._runs[-1]) else None
        if before is not None:
            earlier = await self._folder.read(before.name, 0, before.count * NOTE_BYTES) or b""
            pieces.insert(0, earlier[: len(earlier) // NOTE_BYTES * NOTE_BYTES])
            first = before.first
        run, body = await blocking(runs.sorted_run, first, last, pieces)
        await self._folder.replace(run.name, body)
        gone = [_log_name(number) for number in self._logs] + ([] if before is None else [before.name])
        for key in self._recent:
            highest = self._highest.get(key[:SOURCE_BYTES])
            if highest is not None and highest < _start(key):
                self._highest[key[:SOURCE_BYTES]] = _start(key)
        self._runs = (*(each for each in self._runs if each is not before), run)
        self._recent, self._logs, self._spill_at = {}, [], self._options.log_notes
        for name in gone:
            await self._folder.remove(name)

    def _fits(self, run: Run) -> bool:
        newest = max(map(notes.landed_at, self._recent.values()))
        small = run.count + len(self._recent) <= self._options.run_notes
        return small and abs(newest - run.oldest_ns) < self._options.run_span_ns

    async def _drop(self, old: Collection[Run], needed: Iterable[BatchIdentity], *, recent: bool) -> int:
        """Drop these runs, and what is in logs if it is ``recent`` that goes too."""
        if not old and not recent:
            return 0
        carried: dict[bytes, bytes] = {}
        for key in map(notes.key_of, needed):
            found = self._recent.get(key) if recent else None
            if found is None:
                found = await self._among(tuple(old), key)
            if found is not None:
                carried[key] = found
        count = sum(run.count for run in old) + (len(self._recent) if recent else 0)
        gone = [run.name for run in old]
        if recent:
            gone += map(_log_name, self._logs)
            number = self._next()
            if carried:
                await self._folder.append(_log_name(number), 0, b"".join(carried.values()))
            self._logs, self._log_bytes = [number], NOTE_BYTES * len(carried)
            self._recent = carried
        else:
            await self._append(list(carried.values()))
        self._runs = tuple(run for run in self._runs if run not in old)
        for name in gone:
            await self._folder.remove(name)
        return count - len(carried)

    async def _know(self, names: Collection[str]) -> None:
        if all(_number_of(name) in self._collectors for name in names):
            return
        known = {**self._collectors, **{_number_of(name): name for name in names}}
        kept = dict(list(known.items())[-MOST_COLLECTORS:])
        await self._folder.replace(COLLECTORS, codec.encode({"collectors": list(kept.values())}))
        self._collectors = kept

    def _next(self) -> int:
        return max([0, *self._logs, *(run.last for run in self._runs)]) + 1

    # Loading

    async def _salvage(self, name: str) -> None:
        """Of a damaged run what can be read goes into a log, and then into another run."""
        found = [each for _, each in notes.scan(await self._folder.read(name) or b"")]
        _log.error("%s: this file of notes is damaged; %d of its notes can be read", name, len(found))
        await self._append(found)
        await self._folder.remove(name)

    async def _load_log(self, number: int) -> None:
        name = _log_name(number)
        if any(run.covers(number, number) for run in self._runs):
            await self._folder.remove(name)
            return
        await self._folder.fsync(name)
        data = await self._folder.read(name) or b""
        self._logs.append(number)
        self._log_bytes = 0
        for self._log_bytes, each in notes.scan(data):
            self._recent[each[:KEY_BYTES]] = each


def _start(key: bytes) -> bytes:
    return key[SOURCE_BYTES : SOURCE_BYTES + START_BYTES]


def _log_name(number: int) -> str:
    return f"{number:012d}.log"


def _number_of(collector_id: str) -> int:
    return zlib.crc32(collector_id.encode())
