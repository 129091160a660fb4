"""What the demo's hosts have to say: three hours of metrics and logs of each, the last of which is over.

Values are multiples of 1/1024, so that sums are exact in whatever order they are added.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from holdfast.ingest.frame import Identity, Sequenced, encode, inspect, pack_sequenced
from holdfast.ingest.records import Counter, Gauge, Log, Record

HOSTS = ("web-1", "web-2", "web-3", "db-1", "db-2")
HOURS = 3
EVERY_S = 20
BATCH_RECORDS = 75
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
WATCHED = "disk_free_bytes"
"""The metric that some hosts stop emitting: db-2 after the first hour, web-3, which is switched off, after two."""
_LAST_HOUR_OF_DISK = {"db-2": 1, "web-3": 2}
_LAST_HOUR = {"web-3": 2}
_RESTARTED = "web-2"


@dataclass(frozen=True)
class Cut:
    """One batch, cut and encoded once: every try sends these bytes."""

    identity: Identity
    frame: bytes
    first_ns: int
    """The time of its first record."""


def first_hour(now_ns: int) -> int:
    """So that the last hour ended an hour ago."""
    return now_ns // HOUR_NS - HOURS - 1


def batches(host: str, hour: int, rng: Random) -> list[Cut]:
    """Everything that a host sends, batch by batch. One host starts again in the middle and numbers from 0."""
    found: list[Cut] = []
    middle = (hour + HOURS // 2) * HOUR_NS + HOUR_NS // 2
    by_boot: dict[str, list[Record]] = {}
    for record in _records(host, hour, rng, middle if host == _RESTARTED else None):
        boot = "boot-2" if host == _RESTARTED and record.time_ns >= middle else "boot-1"
        by_boot.setdefault(boot, []).append(record)
    for boot, records in by_boot.items():
        starts = range(0, len(records), BATCH_RECORDS)
        found += [cut(host, boot, records[start : start + BATCH_RECORDS], start) for start in starts]
    return found


def cut(host: str, boot: str, records: list[Record], seq_start: int) -> Cut:
    batch = pack_sequenced(host, boot, [Sequenced(seq, each) for seq, each in enumerate(records, seq_start)])
    frame = encode(batch)
    return Cut(inspect(frame).identity, frame, records[0].time_ns)


def _records(host: str, first: int, rng: Random, restart_ns: int | None) -> Iterator[Record]:
    hours = _LAST_HOUR.get(host, HOURS)
    with_disk = _LAST_HOUR_OF_DISK.get(host, HOURS)
    totals = {"200": rng.randrange(10_000), "500": rng.randrange(100)}
    disk = rng.randrange(200, 400) << 30
    for number in range(hours * 3600 // EVERY_S):
        now = first * HOUR_NS + number * EVERY_S * SECOND_NS + rng.randrange(SECOND_NS)
        if restart_ns is not None and now >= restart_ns:
            totals, restart_ns = dict.fromkeys(totals, 0), None
        for cpu in ("0", "1"):
            yield Gauge("cpu_busy_ratio", rng.randrange(1024) / 1024, now, {"cpu": cpu})
        yield Gauge("memory_free_bytes", rng.randrange(1 << 34), now)
        for code, most in (("200", 400), ("500", 3)):
            totals[code] += rng.randrange(most)
            yield Counter("requests_total", totals[code], now, {"code": code})
        if now < (first + with_disk) * HOUR_NS:
            disk -= rng.randrange(1 << 20)
            yield Gauge(WATCHED, disk, now, {"mount": "/"})
        if rng.randrange(20) == 0:
            yield Log(f"{host} answered {totals['500']} requests with an error", now)
