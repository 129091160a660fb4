"""Search in logs: ``hf.logs()``. The index of words leads to the batches in which a log may match, and only those are
read. Where the index does not cover all accepted batches, every batch of the hour is read.

A log matches if its message has all of the words, contains the text, and matches the regular expression, its labels
fulfil the conditions, and its severity is at least the one asked for. The newest come first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.telemetry.batches import BatchCache
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.answer import Listing
from holdfast.telemetry.query.question import Moment, range_ns
from holdfast.telemetry.query.sources import HourSources, Sources, Superseded, retry_superseded
from holdfast.telemetry.records import HIGHEST_SEVERITY, Severity
from holdfast.telemetry.rollup import index
from holdfast.telemetry.rollup.columns import Flags, Ints
from holdfast.telemetry.rollup.index import has_words, words_in, words_of
from holdfast.telemetry.rollup.layout import HOUR_NS, hour_start_ns
from holdfast.telemetry.rollup.manifest import ChunkRef, Table
from holdfast.telemetry.rollup.matchers import (
    AGENT,
    EXPORTED_AGENT,
    AgentFilter,
    Conditions,
    Matcher,
    Operator,
    check_pattern,
    matchers_of,
    matching,
    shown_labels,
)
from holdfast.telemetry.rollup.points import Exclusions, LogLines, telemetry_of
from holdfast.telemetry.rollup.shared_numbers import find_other_hours, rows_overlapping

READS = 16
MAX_LIMIT = 10_000


class Logs:
    def __init__(self, store: Store, ambient: Ambient, limits: Limits) -> None:
        """``limits`` are those of frames that are read."""
        self._store = store
        self._ambient = ambient
        self._limits = limits
        self._cache = BatchCache()

    async def search(
        self,
        words: str = "",
        *,
        contains: str = "",
        regex: str = "",
        since: Moment = "1h",
        until: Moment | None = None,
        severity: int | str = 0,
        where: Conditions = None,
        agent: str | None = None,
        limit: int = 100,
    ) -> Listing:
        """Logs with all of these words, the newest first, at most ``limit``.

        ``contains`` is text that must be in the message literally, whatever its case; ``regex`` an expression of RE2
        that must match somewhere in it.
        """
        since_ns, until_ns = range_ns(since, until, self._ambient.clock.wall_ns())
        if not 1 <= limit <= MAX_LIMIT:
            raise Invalid(f"limit is {limit}; it must be from 1 to {MAX_LIMIT:,}")
        found = tuple(words_in(words))
        if words.strip() and not found:
            raise Invalid(
                f"{words!r} has no word in it",
                remedy="words are runs of letters, digits and underscores; other text is found with contains",
            )
        message = MessageQuery(found, contains, check_pattern(regex))
        query = LogQuery(since_ns, until_ns, message, severity_of(severity), matchers_of(where, agent), limit)
        return await retry_superseded(lambda: _Search(Sources(self._store, self._limits, self._cache), query).run())


@dataclass(frozen=True, slots=True)
class MessageQuery:
    words: tuple[str, ...] = ()
    contains: str = ""
    regex: str = ""

    def indexed(self) -> list[str]:
        """Words that every such message has: those asked for, and those of the text that begin and end within it."""
        _, within = words_of(pa.array([self.contains], pa.string()))
        whole = within.to_pylist()
        first = 1 if _is_word(self.contains[:1]) else 0
        last = len(whole) - (1 if _is_word(self.contains[-1:]) else 0)
        return [*self.words, *whole[first:last]]

    def matches(self, messages: pa.StringArray) -> Flags:
        found = has_words(messages, self.words) if self.words else np.ones(len(messages), np.bool_)
        if self.contains:
            lowered = pc.utf8_lower(pa.scalar(self.contains)).as_py()
            same = pc.match_substring(pc.utf8_lower(messages), lowered)
            found &= same.to_numpy(zero_copy_only=False).astype(np.bool_)
        if self.regex:
            found &= pc.match_substring_regex(messages, self.regex).to_numpy(zero_copy_only=False).astype(np.bool_)
        return found


def _is_word(character: str) -> bool:
    return bool(character) and len(words_in(character)) == 1


@dataclass(frozen=True, slots=True)
class LogQuery:
    since_ns: int
    until_ns: int
    message: MessageQuery
    severity: int
    matchers: tuple[Matcher, ...]
    limit: int

    def labels(self) -> dict[str, str]:
        """Labels that every such log has with these values. One that may be missing is not in the index."""
        indexed = (each for each in self.matchers if each.operator is Operator.EQUAL and each.value)
        return {each.name: each.value for each in indexed if each.name not in (AGENT, EXPORTED_AGENT)}

    def newest(self, logs: LogLines) -> Ints:
        """The newest that match, one more than the limit, which shows that there are more."""
        if not len(logs):
            return np.zeros(0, np.int64)
        found = self.message.matches(logs.message) & (logs.severity >= self.severity)
        agents = [source.agent for source in logs.sources]
        by_agent = [each for each in self.matchers if each.name == AGENT]
        found &= matching(agents, [{}] * len(agents), by_agent)[logs.source]
        sets = [dict(labels) for labels in logs.label_sets]
        by_label = [each for each in self.matchers if each.name != AGENT]
        found &= matching([""] * len(sets), sets, by_label)[logs.labels]
        places = np.flatnonzero(found)
        order = np.lexsort((logs.seq[places], logs.time_ns[places]))
        newest: Ints = places[order[::-1]][: self.limit + 1]
        return newest


class _Search:
    def __init__(self, sources: Sources, query: LogQuery) -> None:
        self._sources = sources
        self._query = query
        self._agents = AgentFilter.of(query.matchers)

    async def run(self) -> Listing:
        query, limit = self._query, self._query.limit
        found: list[dict[str, Any]] = []
        for hour in reversed(await self._sources.hours(query.since_ns, query.until_ns, self._agents)):
            found += await self._hour(hour)
            if len(found) > limit:
                break
        found.sort(key=lambda row: (row["time_ns"], row["agent"], row["boot"], row["seq"]), reverse=True)
        return Listing(found[:limit], self._sources.finished(), len(found) > limit)

    async def _hour(self, hour: HourSources) -> list[dict[str, Any]]:
        rows = {row.manifest_id: row for raw in hour.raw for row in raw.rows}
        excluded = [raw.excluded for raw in hour.raw]
        if candidates := await self._candidates(hour):
            reader = self._sources.reader
            every = [row for row in await self._sources.all_rows(hour) if self._agents.wants(row.agent)]
            # With the batches that share numbers with them.
            indexed = rows_overlapping(every, [row for row in every if row.manifest_id in candidates])
            others = await find_other_hours(self._sources.store, hour.hour, indexed, reader.load_row)
            excluded.append(others.exclusions(indexed))
            rows |= {row.manifest_id: row for row in indexed}
        if not rows:
            return []
        self._sources.read.batches += len(rows)
        batches = await self._sources.reader.load_rows(rows.values())
        start_ns = hour_start_ns(hour.hour)
        since, until = max(self._query.since_ns, start_ns), min(self._query.until_ns, start_ns + HOUR_NS)

        def look() -> list[dict[str, Any]]:
            logs = telemetry_of(batches, since, until, Exclusions.joined(excluded)).logs
            return _documents(logs, self._query.newest(logs))

        return await blocking(look)

    async def _candidates(self, hour: HourSources) -> set[str]:
        """The batches, by manifest id, in which a log may match, of buckets that the index covers."""
        refs = [ref for unit in hour.units for ref in unit.chunks if ref.table is Table.WORDS]
        words, labels, severity = self._query.message.indexed(), self._query.labels(), self._query.severity
        self._sources.read.chunks += len(refs)

        def look(ref: ChunkRef, body: bytes) -> set[str]:
            return index.batches_with(index.decode(Table.WORDS, body, key=ref.key), words, labels, severity)

        async def one(ref: ChunkRef) -> set[str]:
            stored = await self._sources.store.find(ref.key)
            if stored is None:
                raise Superseded(ref.key)
            ref.check(stored.body)
            return await blocking(look, ref, stored.body)

        return set().union(*await map_bounded(refs, one, limit=READS))


def _documents(logs: LogLines, places: Ints) -> list[dict[str, Any]]:
    messages = logs.message.take(pa.array(places)).to_pylist()
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
