"""Search in logs: ``hf.logs()``. The index of words leads to the batches in which a record may fit, and only those are
read. Where the index does not have all that is known, every batch of the hour is.

A log fits if its message has all of the words, contains the text, and matches the regular expression, its labels have
all of the values, and its severity is at least the one asked for. The newest come first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.found import Listing, Read
from holdfast.telemetry.query.fresh import Batches, Memory
from holdfast.telemetry.query.known import Hour, Looked, Overtaken, resolved
from holdfast.telemetry.query.metrics import Matching, agent_test, matchers_of
from holdfast.telemetry.query.question import Moment, moment_ns, wants_bucket
from holdfast.telemetry.records import HIGHEST_SEVERITY, Severity
from holdfast.telemetry.rollup import index
from holdfast.telemetry.rollup.columns import Flags, Ints
from holdfast.telemetry.rollup.counted import Taken, links, touching
from holdfast.telemetry.rollup.extract import telemetry_of
from holdfast.telemetry.rollup.index import has_words, words_in, words_of
from holdfast.telemetry.rollup.layout import HOUR_NS, hour_start_ns
from holdfast.telemetry.rollup.manifest import ChunkRef, Kind, Table
from holdfast.telemetry.rollup.matchers import (
    AGENT,
    EXPORTED_AGENT,
    Matcher,
    Operator,
    check_pattern,
    chosen,
    shown_labels,
)
from holdfast.telemetry.rollup.points import LogLines

AT_ONCE = 16
MOST = 10_000


class Logs:
    def __init__(self, store: Store, ambient: Ambient, limits: Limits) -> None:
        """``limits`` are those of frames that are read."""
        self._store = store
        self._ambient = ambient
        self._limits = limits
        self._memory = Memory()

    async def search(
        self,
        words: str = "",
        *,
        contains: str = "",
        regex: str = "",
        since: Moment = "1h",
        until: Moment | None = None,
        severity: int | str = 0,
        where: Matching = None,
        agent: str | None = None,
        limit: int = 100,
    ) -> Listing:
        """Logs with all of these words, the newest first, at most ``limit``.

        ``contains`` is text that must be in the message as it stands, whatever its case; ``regex`` an expression of RE2
        that must match somewhere in it."""
        now = self._ambient.clock.wall_ns()
        since_ns, until_ns = moment_ns(since, now), now if until is None else moment_ns(until, now)
        if until_ns <= since_ns:
            raise Invalid("the range ends before it begins", remedy="give a time for until that is after since")
        if not 1 <= limit <= MOST:
            raise Invalid(f"limit is {limit}; it must be from 1 to {MOST:,}")
        wanted = Wanted(tuple(words_in(words)), contains, check_pattern(regex))
        if words.strip() and not wanted.words:
            raise Invalid(
                f"{words!r} has no word in it",
                remedy="words are runs of letters, digits and underscores; other text is found with contains",
            )

        async def attempt() -> Listing:
            search = _Search(
                self._store,
                Batches(self._store, self._limits, self._memory),
                since_ns,
                until_ns,
                wanted,
                severity_of(severity),
                matchers_of(where, agent),
                limit,
            )
            return await search.run()

        return await resolved(attempt)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions on the message of a log."""

    words: tuple[str, ...] = ()
    contains: str = ""
    regex: str = ""

    def indexed(self) -> list[str]:
        """Words that every such message has: those asked for, and those within the text that end within it."""
        _, within = words_of(pa.array([self.contains], pa.string()))
        whole = within.to_pylist()
        first = 1 if _is_word(self.contains[:1]) else 0
        last = len(whole) - (1 if _is_word(self.contains[-1:]) else 0)
        return [*self.words, *whole[first:last]]

    def fits(self, messages: pa.StringArray) -> Flags:
        found = has_words(messages, list(self.words))
        if self.contains:
            lowered = pc.utf8_lower(pa.scalar(self.contains)).as_py()
            same = pc.match_substring(pc.utf8_lower(messages), lowered)
            found &= same.to_numpy(zero_copy_only=False).astype(np.bool_)
        if self.regex:
            found &= pc.match_substring_regex(messages, self.regex).to_numpy(zero_copy_only=False).astype(np.bool_)
        return found


def _is_word(character: str) -> bool:
    return bool(character) and len(words_in(character)) == 1


class _Search:
    def __init__(
        self,
        store: Store,
        batches: Batches,
        since_ns: int,
        until_ns: int,
        wanted: Wanted,
        severity: int,
        matchers: Sequence[Matcher],
        limit: int,
    ) -> None:
        self._store = store
        self._batches = batches
        self._since_ns, self._until_ns = since_ns, until_ns
        self._wanted = wanted
        self._severity = severity
        self._matchers = matchers
        self._limit = limit
        self._looked = Looked(store, batches)
        self._wants: Callable[[str], bool] = agent_test(matchers)
        self.read = Read()

    async def run(self) -> Listing:
        hours = await self._looked.hours(
            Kind.ROLLUP,
            self._since_ns,
            self._until_ns,
            wants_agent=self._wants,
            wants_bucket=lambda bucket, buckets: wants_bucket(self._matchers, bucket, buckets),
        )
        self.read.hours = len(hours)
        self.read.unreadable = tuple(
            sorted({each for hour in hours for unit in hour.units for each in unit.unreadable})
        )
        found: list[dict[str, Any]] = []
        truncated = False
        for hour in reversed(hours):
            found += await self._hour(hour)
            if len(found) > self._limit:
                truncated = True
                break
        found.sort(key=lambda row: (row["time_ns"], row["agent"], row["boot"], row["seq"]), reverse=True)
        self.read.unreadable = tuple(sorted({*self.read.unreadable, *self._batches.unreadable}))
        self.read.expired = tuple(sorted(self._batches.expired))
        return Listing(found[: self._limit], self.read, truncated or len(found) > self._limit)

    async def _hour(self, hour: Hour) -> list[dict[str, Any]]:
        rows = [row for bucket in hour.raw for row in bucket.rows]
        taken = [bucket.taken for bucket in hour.raw]
        if candidates := await self._candidates(hour):
            listed = [row for row in await self._looked.read_listed(hour) if self._wants(row.agent)]
            # With the batches that share numbers with them.
            indexed = touching(listed, [row for row in listed if row.manifest_id in candidates])
            found = await links(self._store, hour.hour, indexed, self._batches.of_row)
            taken.append(found.taken(indexed))
            rows += indexed
        if not rows:
            return []
        unique = {row.manifest_id: row for row in rows}
        self.read.batches += len(unique)
        batches = await self._batches.all(unique.values())
        start_ns = hour_start_ns(hour.hour)
        since, until = max(self._since_ns, start_ns), min(self._until_ns, start_ns + HOUR_NS)

        def look() -> list[dict[str, Any]]:
            logs = telemetry_of(batches, since, until, Taken.joined(taken)).logs
            return _documents(logs, self._fitting(logs))

        return await blocking(look)

    async def _candidates(self, hour: Hour) -> set[str]:
        """Batches of buckets that the index covers in which a record may fit, by manifest id."""
        refs = [ref for unit in hour.units for ref in unit.chunks if ref.table is Table.WORDS]
        exact = {each.name: each.value for each in self._matchers if _is_indexed(each)}
        words = self._wanted.indexed()
        self.read.chunks += len(refs)

        async def one(ref: ChunkRef) -> set[str]:
            stored = await self._store.find(ref.key)
            if stored is None:
                raise Overtaken(ref.key)
            ref.check(stored.body)
            return await blocking(look, ref, stored.body)

        def look(ref: ChunkRef, body: bytes) -> set[str]:
            table = index.decode(Table.WORDS, body, key=ref.key)
            found = index.batches_with(table, words, exact, self._severity)
            return index.all_batches(table) if found is None else found

        return set().union(*await map_bounded(refs, one, limit=AT_ONCE))

    def _fitting(self, logs: LogLines) -> Ints:
        """The newest that fit, one more than wanted."""
        if not len(logs):
            return np.zeros(0, np.int64)
        agents = [source.agent for source in logs.sources]
        fits = self._wanted.fits(logs.message) & (logs.severity >= self._severity)
        by_agent = [each for each in self._matchers if each.name == AGENT]
        by_label = [each for each in self._matchers if each.name != AGENT]
        fits &= chosen(agents, [{}] * len(agents), by_agent)[logs.source]
        sets = [dict(labels) for labels in logs.label_sets]
        fits &= chosen([""] * len(sets), sets, by_label)[logs.labels]
        places = np.flatnonzero(fits)
        order = np.lexsort((logs.seq[places], logs.time_ns[places]))
        newest: Ints = places[order[::-1]][: self._limit + 1]
        return newest


def _is_indexed(matcher: Matcher) -> bool:
    """A label that must have a value. One that may be missing is in no index."""
    return matcher.operator is Operator.IS and matcher.name not in (AGENT, EXPORTED_AGENT) and matcher.value != ""


def _documents(logs: LogLines, places: Ints) -> list[dict[str, Any]]:
    messages = logs.message.take(places).to_pylist() if len(places) else []
    found = []
    for at, message in zip(places.tolist(), messages, strict=True):
        source = logs.sources[int(logs.source[at])]
        found.append(
            {
                "time_ns": int(logs.time_ns[at]),
                "agent": source.agent,
                "boot": source.boot,
                "seq": int(logs.seq[at]),
                "severity": int(logs.severity[at]),
                "labels": shown_labels(logs.label_sets[int(logs.labels[at])]),
                "message": message,
            }
        )
    return found


def severity_of(given: int | str) -> int:
    """A number from 0 to 24, or the name of one: ``warn``, ``error``."""
    names: Mapping[str, int] = {each.name.lower(): int(each) for each in Severity}
    text = str(given).lower()
    number = names.get(text, int(text) if text.isdecimal() else -1)
    if not 0 <= number <= HIGHEST_SEVERITY:
        raise Invalid(
            f"{given!r} is not a severity",
            remedy=f"use a number from 0 to {HIGHEST_SEVERITY}, or one of {', '.join(names)}",
        )
    return number
