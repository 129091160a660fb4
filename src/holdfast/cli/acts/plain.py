"""A reader of frames that knows ``docs/formats.md`` and none of the project's code: what the demo counts again with.

Slow, element by element. It reads gauges, counters and logs, which is what the demo's agents send.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

MAGIC = b"\x89HFF\r\n\x1a\n"
DIVISORS = {2: 1.0, 3: 10.0, 4: 100.0, 5: 1000.0, 6: 2048.0, 7: 1e6, 8: 1e9}
KINDS = ("gauge", "counter")


class Unreadable(Exception):
    """The bytes are not what the format says."""


@dataclass(frozen=True)
class Sample:
    seq: int
    kind: str
    name: str
    labels: tuple[tuple[str, str], ...]
    time_ns: int
    value: float


@dataclass(frozen=True)
class Frame:
    agent: str
    boot: str
    start: int
    end: int
    samples: list[Sample]
    logs: list[int]
    """Sequence numbers."""


def read(frame: bytes) -> Frame:
    head = struct.unpack_from("<8sHHIIIQQIHH", frame)
    magic, version, flags, checksum, stored, size, start, end, records, agent, boot = head
    at = 48 + agent + boot
    _demand((magic, version, flags & ~1, len(frame)) == (MAGIC, 1, 0, at + stored), "no frame of version 1")
    _demand(zlib.crc32(frame[16:], zlib.crc32(frame[:12])) == checksum, "wrong checksum")
    payload = frame[at:]
    if flags & 1:
        payload = pa.Codec("zstd").decompress(payload, decompressed_size=size, asbytes=True)
    columns = _Columns(payload)
    counts = struct.unpack("<17I", columns.raw(68))
    _demand(not counts[8] and not counts[15], "this reader knows neither histograms nor alerts")
    texts = columns.texts(counts[0], counts[1])
    lengths = columns.ints(counts[2])
    names, values = columns.steps(counts[3]), columns.steps(counts[3])
    pairs = iter([(texts[name], texts[value]) for name, value in zip(names, values, strict=True)])
    sets = [tuple(sorted(next(pairs) for _ in range(length))) for length in lengths]
    samples = list(_samples(columns, counts[4], counts[6], texts, sets)) if counts[5] else []
    logs = columns.steps(counts[13]) if counts[13] else []
    _demand(len(samples) + len(logs) == records, f"{records} records are announced")
    return Frame(frame[48 : 48 + agent].decode(), frame[48 + agent : at].decode(), start, end, samples, logs)


def _samples(
    columns: "_Columns", series: int, times: int, texts: list[str], sets: list[tuple[tuple[str, str], ...]]
) -> Iterator[Sample]:
    kinds, scales = columns.ints(series), columns.ints(series)
    names, labels, lengths = columns.steps(series), columns.steps(series), columns.ints(series)
    seqs = columns.grouped(lengths, related=True)
    table = columns.steps(times) if times else []
    moments = columns.grouped(lengths, related=True)
    numbers = columns.grouped(lengths, related=False)
    of = [number for number, length in enumerate(lengths) for _ in range(length)]
    for seq, number, moment, stored in zip(seqs, of, moments, numbers, strict=True):
        yield Sample(
            seq,
            KINDS[kinds[number]],
            texts[names[number]],
            sets[labels[number]],
            table[moment] if times else moment,
            _value(scales[number], stored),
        )


def _value(scale: int, number: int) -> float:
    if scale == 0:
        (value,) = struct.unpack("<d", struct.pack("<q", number))
        return float(value)
    return float(number) if scale == 1 else number / DIVISORS[scale]


class _Columns:
    def __init__(self, payload: bytes) -> None:
        self._payload, self._at = payload, 0

    def raw(self, size: int) -> bytes:
        taken = self._payload[self._at : self._at + size]
        _demand(len(taken) == size, "the payload ends early")
        self._at += size
        return taken

    def ints(self, count: int) -> list[int]:
        mask = self.raw(1)[0]
        numbers = [0] * count
        for plane in range(8):
            if mask >> plane & 1:
                numbers = [number | byte << 8 * plane for number, byte in zip(numbers, self.raw(count), strict=True)]
        return [number >> 1 if number % 2 == 0 else -(number >> 1) - 1 for number in numbers]

    def steps(self, count: int) -> list[int]:
        return _sums(self.ints(count))

    def grouped(self, lengths: list[int], *, related: bool) -> list[int]:
        firsts = self.steps(len(lengths)) if related else self.ints(len(lengths))
        steps = iter(self.ints(sum(lengths) - len(lengths)))
        found: list[int] = []
        for first, length in zip(firsts, lengths, strict=True):
            found += _sums([first, *(next(steps) for _ in range(length - 1))])
        return found

    def texts(self, count: int, size: int) -> list[str]:
        lengths, data = self.ints(count), self.raw(size)
        return [data[end - length : end].decode() for end, length in zip(_sums(lengths), lengths, strict=True)]


def _sums(steps: Iterable[int]) -> list[int]:
    total, found = 0, []
    for step in steps:
        total = (total + step + 2**63) % 2**64 - 2**63  # arithmetic wraps around at 64 bits
        found.append(total)
    return found


def _demand(condition: bool, what: str) -> None:
    if not condition:
        raise Unreadable(what)
