"""What a query collector hears of the others: up to when each has told what it acknowledged, and who fell silent.

A look is one LIST of the marks, and one GET for each that was written since. It comes before the look for gatherings
and references, so that whatever a mark promises is there when these are listed. A collector that is not listed yet has
acknowledged nothing yet.

Whoever fell silent without an end, whoever says that batches of its are listed nowhere, and whoever ended with a clock
that was ahead (its batches are listed in hours that nobody looks at yet) is **wanting**: nobody can be called complete
until all manifests were looked at, from then on. Reads alone.

A collector that starts wants what was acknowledged before it began, and no more (``rebuild``): of those whose marks it
met, each that is alive tells the rest with its next marks, and only whoever does not is worth a look at all manifests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.base.aio import map_bounded
from holdfast.base.clock import Clock
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import Entry, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.marks import Mark

AT_ONCE = 8
SKEW_NS = 600 * 1_000_000_000
"""How far the clocks of collectors and of the store may be apart."""

_log = logger("ingest.follow")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Why a collector calls for an audit."""

    unlisted: int
    silent_since_ns: int | None
    """When it was heard last; None if it still is."""


@dataclass(slots=True)
class Voice:
    """One collector, as it was heard last."""

    entry: Entry
    mark: Mark | None
    """None if it cannot be read."""
    heard_ns: int
    """When its mark was found changed, by this process's monotonic clock."""
    covered: int = 0
    """Of its batches that are listed nowhere, how many an audit has looked for."""
    settled: bool = False
    """It is gone, and an audit has looked for what it left."""
    changes: int = 0
    """How often its mark was found changed."""
    since_unix_ns: int = 0
    """A time after it was met, by its own clock; 0 if none is known. When it wrote its second mark since: the first may
    have been on its way to the store before."""

    @property
    def told_ns(self) -> int:
        """Manifests of its that were written before, by the store's clock, are listed by time; 0 if nobody knows."""
        if self.mark is None or self.ahead:
            return 0
        promised_ns = min(self.mark.through_unix_ns, self.entry.modified_ns)
        if self.mark.unlisted <= self.covered:
            return promised_ns - SKEW_NS
        if self.mark.begun_unix_ns > promised_ns:
            return 0  # its clock was set back since
        return self.mark.begun_unix_ns - SKEW_NS

    @property
    def ahead(self) -> bool:
        """Whether its clock is, so that nobody knows where to look for its batches."""
        return self.mark is not None and self.mark.through_unix_ns > self.entry.modified_ns + SKEW_NS

    @property
    def tells_all(self) -> bool:
        """Whether whatever its mark promises is listed where everybody looks."""
        return self.mark is not None and not self.ahead and self.mark.unlisted <= self.covered

    @property
    def over(self) -> bool:
        return self.mark is not None and self.mark.ended

    @property
    def has_told(self) -> bool:
        """Whether all is listed that it acknowledged before it was met. Both times are of its own clock, which may be
        ahead or behind."""
        return self.mark is not None and 0 < self.since_unix_ns <= self.mark.through_unix_ns

    def gone(self, now_ns: int) -> bool:
        """Whether it accepts nothing more, and left what cannot be found by time."""
        return self.mark is not None and (
            _silent(self.mark, now_ns - self.heard_ns) or (self.mark.ended and self.ahead)
        )


@dataclass
class Heard:
    store: Store
    clock: Clock
    own: str = ""
    """The session of this process, which knows at once what it acknowledged."""
    forgotten_ns: int = 86_400 * 1_000_000_000
    """Marks that are older when they are first seen are not read: what they tell of is of no interest any more, or an
    audit has begun later."""
    _voices: dict[str, Voice] = field(default_factory=dict)

    async def look(self) -> None:
        now_ns = self.clock.monotonic_ns()
        entries = [entry async for page in self.store.list(layout.MARKS) for entry in page.entries]
        entries = [each for each in entries if layout.session_in(each.key) is not None]
        self._voices = {each.key: self._voices[each.key] for each in entries if each.key in self._voices}
        oldest_ns = self.clock.wall_ns() - self.forgotten_ns
        changed = [each for each in entries if self._changed(each, oldest_ns)]
        for entry, mark in zip(changed, await map_bounded(changed, self._read, limit=AT_ONCE), strict=True):
            before = self._voices.get(entry.key)
            heard_ns = now_ns if before is not None or mark is None else now_ns - self._silent_for(entry, mark)
            voice = self._voices[entry.key] = Voice(entry, mark, heard_ns)
            if before is not None:
                voice.covered, voice.changes = before.covered, before.changes + 1
                voice.since_unix_ns = before.since_unix_ns
                if mark is not None and voice.changes > 1 and not before.since_unix_ns:
                    voice.since_unix_ns = mark.written_unix_ns

    def through_ns(self, began_ns: int) -> int:
        """Up to when everything that was acknowledged is listed somewhere, if a look began then and nobody is wanting.

        By the clock of whoever acknowledged it.
        """
        marks = [each.mark for each in self._voices.values() if each.mark is not None and not each.settled]
        open_ns = [mark.through_unix_ns for mark in marks if not mark.ended and mark.session != self.own]
        return min([began_ns, *open_ns])

    def wanting(self) -> dict[str, Wanted]:
        """Those who call for an audit, by the keys of their marks."""
        now_ns = self.clock.monotonic_ns()
        found: dict[str, Wanted] = {}
        for key, voice in self._voices.items():
            if voice.mark is None:
                continue
            gone = not voice.settled and voice.gone(now_ns)
            if gone or voice.mark.unlisted > voice.covered:
                found[key] = Wanted(voice.mark.unlisted, voice.heard_ns if gone else None)
        return found

    def covered(self, wanted: Mapping[str, Wanted]) -> None:
        """An audit that began when these were wanting has seen all manifests."""
        for key, one in wanted.items():
            voice = self._voices.get(key)
            if voice is not None:
                voice.covered = max(voice.covered, one.unlisted)
                voice.settled = voice.settled or one.silent_since_ns == voice.heard_ns

    def met(self) -> dict[str, Voice]:
        """All but this process, as they were heard last. Who is not among them has acknowledged nothing yet."""
        own = layout.mark_key(self.own)
        return {key: voice for key, voice in self._voices.items() if key != own}

    def untold(self, met: Mapping[str, Voice]) -> list[Voice]:
        """Those of them of whom something that they acknowledged before they were met may be listed nowhere."""
        found: list[Voice] = []
        for key, before in met.items():
            voice = self._voices.get(key, before)
            if not voice.tells_all or not (voice.over or voice.has_told):
                found.append(voice)
        return found

    def speaking(self, voices: Iterable[Voice]) -> list[Mark]:
        """Those of them who are likely to tell it themselves."""
        now_ns = self.clock.monotonic_ns()
        alive = [each for each in voices if each.tells_all and not each.over and not each.gone(now_ns)]
        return [each.mark for each in alive if each.mark is not None]

    def why(self) -> str | None:
        """What is to be said of those who are wanting, or cannot be understood."""
        now_ns = self.clock.monotonic_ns()
        for key, voice in self._voices.items():
            if voice.mark is None:
                return f"a mark of a collector cannot be read: {key}"
            if voice.ahead and not voice.settled and not voice.gone(now_ns):
                return f"the clock of {voice.mark.collector_id} is ahead, so nobody knows where to look for its batches"
        marks = [self._voices[key].mark for key in self.wanting()]
        names = sorted({mark.collector_id for mark in marks if mark is not None})
        if not names:
            return None
        return f"what {', '.join(names[:3])} accepted last is told nowhere; all manifests are being looked at"

    def _changed(self, entry: Entry, oldest_ns: int) -> bool:
        before = self._voices.get(entry.key)
        if before is None:
            return entry.modified_ns >= oldest_ns
        return (before.entry.modified_ns, before.entry.size) != (entry.modified_ns, entry.size)

    async def _read(self, entry: Entry) -> Mark | None:
        try:
            return Mark.read(await self.store.get(entry.key))
        except (NotFound, Corrupt, Incompatible) as error:
            _log.error("%s: nobody knows what this collector has accepted: %s", entry.key, error)
            return None

    def _silent_for(self, entry: Entry, mark: Mark) -> int:
        """A mark that was old already when it was first seen need not be waited for."""
        return mark.silent_after_ns + 1 if self.clock.wall_ns() - entry.modified_ns > SKEW_NS else 0


def _silent(mark: Mark, for_ns: int) -> bool:
    return not mark.ended and for_ns > mark.silent_after_ns
