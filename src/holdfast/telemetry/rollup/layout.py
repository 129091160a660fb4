"""The keys of derived data. Pure: from hours, metrics and ids to keys, and back.

    batches-by-hour/v1/date={day}/hour={hour}/{id}.parquet                                batches with records in it
    rollup/v1/window={window}/date={day}/hour={hour}/metric={metric}/{chunk}.lmrollup.zst  rows of one metric and window
    index/v1/date={day}/hour={hour}/{chunk}.lmindex.zst                                   series, or words of logs
    manifests/v1/date={day}/hour={hour}/unit-{unit}.json                                  inputs and chunks of a unit
    manifests/v1/date={day}/hour={hour}/{kind}-{generation}.json                          the current units of an hour

Hours are hours of sample time, in UTC, as whole numbers counted from 1970 (correction 14). Every object here is created
once and never changed. Chunks of windows above an hour are stored in the first hour of their day.

Names of metrics are percent-encoded, as Hive, Spark and DuckDB decode them. If the encoded name is longer than
``MAX_NAME``, the key has its beginning and a hash, separated by ``~``; the chunk contains the whole name.

``Windows`` are the lengths of time for which rows are made. Each is a multiple of the one before it, so that its rows
can be merged. Windows up to an hour divide the hour, larger ones are whole hours and divide the day, so every window is
derived from one hour or day. A window begins at a multiple of its length since 1970, in UTC.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from urllib.parse import quote

from holdfast.base.errors import Invalid

ROLLUP = "rollup/v1/"
INDEX = "index/v1/"
MANIFESTS = "manifests/v1/"
BATCHES_BY_HOUR = "batches-by-hour/v1/"
COVERAGE = "meta/pipeline/coverage/"
SHARDS = 64

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
MAX_NAME = 200
"""Characters of an encoded name in a key."""
_NAME_BEGINNING = 120

_UNITS = (("d", DAY_NS), ("h", HOUR_NS), ("m", 60 * SECOND_NS), ("s", SECOND_NS))
_WINDOW = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_HOUR = re.compile(r"date=(\d{4})-(\d\d)-(\d\d)/hour=(\d\d)/")
_HASH = re.compile(r"[0-9a-f]{64}")
_UNIT = re.compile(r"/unit-([0-9a-f]{64})\.json")
_GENERATION = re.compile(r"/([a-z]+)-(\d{8})\.json")
_ROLLUP = re.compile(re.escape(ROLLUP) + r"window=([1-9][0-9]{0,8})([smhd])/")
_SAFE = "_.-"


def hour_start_ns(hour: int) -> int:
    return hour * HOUR_NS


def hours_between(since_ns: int, until_ns: int) -> range:
    """The hours that overlap [since, until)."""
    return range(since_ns // HOUR_NS, -(-until_ns // HOUR_NS))


def hour_path(hour: int) -> str:
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    return f"date={moment.year:04d}-{moment:%m-%d}/hour={moment:%H}/"


def hour_name(hour: int) -> str:
    """``2026-01-31T12``: an hour in one word."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    return f"{moment.year:04d}-{moment:%m-%dT%H}"


def hour_in(key: str) -> int | None:
    """The hour in a key; None if the key has none."""
    found = _HOUR.search(key)
    if found is None:
        return None
    try:
        year, month, day, hour = map(int, found.groups())
        return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) // 3600
    except ValueError:
        return None


def window_name(window_ns: int) -> str:
    """``10s``, ``1m``, ``5m``, ``1h``, ``1d``: whole seconds, in the largest unit that fits."""
    for name, size in _UNITS:
        if window_ns > 0 and window_ns % size == 0:
            return f"{window_ns // size}{name}"
    raise Invalid(f"a window of {window_ns} ns is not a number of whole seconds", remedy="use 10s, 1m, 5m, 1h, 1d")


def window_of(name: str) -> int:
    found = _WINDOW.fullmatch(name)
    if found is None:
        raise Invalid(f"{name!r} is not a window", remedy="use a number and s, m, h or d, such as 10s, 1m or 1h")
    return int(found[1]) * dict(_UNITS)[found[2]]


def escape(metric: str) -> str:
    """The name as one component of a key."""
    encoded = quote(metric, safe=_SAFE).replace("~", "%7E")
    if len(encoded) <= MAX_NAME:
        return encoded
    return f"{encoded[:_NAME_BEGINNING]}~{hashlib.sha256(metric.encode()).hexdigest()}"


def rollup_folder(window_ns: int, hour: int) -> str:
    return f"{ROLLUP}window={window_name(window_ns)}/{hour_path(hour)}"


def rollup_key(window_ns: int, hour: int, metric: str, chunk_id: str) -> str:
    return f"{rollup_folder(window_ns, hour)}metric={escape(metric)}/{_hash(chunk_id)}.lmrollup.zst"


def index_key(hour: int, chunk_id: str) -> str:
    return f"{INDEX}{hour_path(hour)}{_hash(chunk_id)}.lmindex.zst"


def window_in(key: str) -> int | None:
    """The window of a chunk of rollups; None for the key of another object."""
    found = _ROLLUP.match(key)
    return None if found is None else int(found[1]) * dict(_UNITS)[found[2]]


def manifest_folder(hour: int) -> str:
    return f"{MANIFESTS}{hour_path(hour)}"


def unit_key(hour: int, unit_id: str) -> str:
    return f"{manifest_folder(hour)}unit-{_hash(unit_id)}.json"


def unit_in(key: str) -> str | None:
    """The id of the unit whose manifest this is; None for the key of another object."""
    found = _UNIT.search(key)
    return found[1] if found is not None and key.startswith(MANIFESTS) else None


def generation_key(hour: int, kind: str, number: int) -> str:
    if not 1 <= number <= 99_999_999:
        raise Invalid(f"{number} is not the number of a generation")
    return f"{manifest_folder(hour)}{kind}-{number:08d}.json"


def generation_in(key: str) -> tuple[str, int] | None:
    """Kind and number of the generation under this key; None for the key of another object."""
    found = _GENERATION.search(key)
    return (found[1], int(found[2])) if found is not None and key.startswith(MANIFESTS) else None


def batches_folder(hour: int) -> str:
    return f"{BATCHES_BY_HOUR}{hour_path(hour)}"


def batches_key(hour: int, listing_id: str) -> str:
    return f"{batches_folder(hour)}{_hash(listing_id)}.parquet"


def listing_in(key: str) -> str | None:
    """The id of the listing under this key; None for the key of another object."""
    hour, name = hour_in(key), key.rpartition("/")[2].removesuffix(".parquet")
    if hour is None or not _HASH.fullmatch(name) or key != batches_key(hour, name):
        return None
    return name


def shard_of(agent: str) -> int:
    return hashlib.sha256(agent.encode()).digest()[0] % SHARDS


def coverage_key(agent: str) -> str:
    """Where the reconciler records which sequence numbers of an agent it has seen."""
    return f"{COVERAGE}{shard_of(agent):02d}.json"


def immutable(key: str) -> bool:
    """Whether the object under this key never changes, so that it can be cached."""
    return key.startswith((ROLLUP, INDEX, MANIFESTS, BATCHES_BY_HOUR))


def _hash(digest: str) -> str:
    if not _HASH.fullmatch(digest):
        raise Invalid(f"{digest[:80]!r} is not a SHA-256 in lower-case hexadecimal")
    return digest


DEFAULT_WINDOWS = ("10s", "1m", "5m", "1h", "1d")


@dataclass(frozen=True, slots=True)
class Windows:
    hourly: tuple[int, ...]
    """Nanoseconds; from samples."""
    daily: tuple[int, ...]
    """Nanoseconds; from rows of the largest hourly one."""

    @property
    def all(self) -> tuple[int, ...]:
        return self.hourly + self.daily

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(window_name, self.all))

    @classmethod
    def of(cls, names: Iterable[str] = DEFAULT_WINDOWS) -> "Windows":
        found = sorted({window_of(name) for name in names})
        hourly = tuple(each for each in found if each <= HOUR_NS)
        daily = tuple(each for each in found if each > HOUR_NS)
        _check(found, hourly)
        return cls(hourly, daily)

    def version(self, kind: str, number: int) -> str:
        """The version of a derivation with these windows."""
        chosen = self.daily if kind == "daily" else self.hourly
        return f"{kind}.{number} {','.join(map(window_name, chosen))}"


def _check(found: Sequence[int], hourly: Sequence[int]) -> None:
    if not hourly:
        raise Invalid("every window is longer than an hour", remedy="name at least one such as 1m")
    for smaller, larger in pairwise(found):
        if larger % smaller:
            raise Invalid(
                f"window {window_name(larger)} is not a multiple of {window_name(smaller)}",
                remedy="choose windows of which each divides the next, such as 10s, 1m, 5m, 1h, 1d",
            )
    for each in found:
        check_window(each)


def check_window(window_ns: int) -> None:
    """``Invalid`` for a length that windows cannot have."""
    whole = HOUR_NS if window_ns <= HOUR_NS else DAY_NS
    if window_ns <= 0 or whole % window_ns or (window_ns > HOUR_NS and window_ns % HOUR_NS):
        raise Invalid(
            f"window {window_name(window_ns)} does not divide {window_name(whole)} evenly",
            remedy="up to an hour, windows divide the hour; above, they are whole hours and divide the day",
        )
