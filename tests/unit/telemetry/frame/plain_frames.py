"""A second reader of frames, as ``docs/formats.md`` has them: slow, plain Python, no code of the project's.

It checks little, and reads element by element. Whatever our decoder accepts, this one must read as the same records.
"""

import struct
import zlib
from typing import Any

import pyarrow as pa

DIVISORS = {2: 1.0, 3: 10.0, 4: 100.0, 5: 1000.0, 6: 2048.0, 7: 1e6, 8: 1e9}
Plain = dict[str, Any]


def signed(number: int) -> int:
    """The number modulo 2**64, as int64."""
    return (number + 2**63) % 2**64 - 2**63


def float_of(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    assert isinstance(value, float)
    return value


class Columns:
    def __init__(self, payload: bytes) -> None:
        self.payload, self.at = payload, 0

    def raw(self, size: int) -> bytes:
        taken = self.payload[self.at : self.at + size]
        assert len(taken) == size
        self.at += size
        return taken

    def ints(self, count: int) -> list[int]:
        mask = self.raw(1)[0]
        numbers = [0] * count
        for plane in range(8):
            if mask >> plane & 1:
                numbers = [number | byte << 8 * plane for number, byte in zip(numbers, self.raw(count), strict=True)]
        return [number >> 1 if number % 2 == 0 else -(number >> 1) - 1 for number in numbers]

    def steps(self, count: int) -> list[int]:
        return sums(self.ints(count))

    def grouped(self, lengths: list[int], *, related: bool) -> list[int]:
        firsts = self.steps(len(lengths)) if related else self.ints(len(lengths))
        steps = iter(self.ints(sum(lengths) - len(lengths)))
        return [
            each
            for first, length in zip(firsts, lengths, strict=True)
            for each in sums([first, *(next(steps) for _ in range(length - 1))])
        ]

    def texts(self, count: int, size: int) -> list[str]:
        lengths, data = self.ints(count), self.raw(size)
        ends = sums(lengths)
        assert (ends or [0])[-1] == size
        return [data[end - length : end].decode() for end, length in zip(ends, lengths, strict=True)]


def sums(steps: list[int]) -> list[int]:
    total, found = 0, []
    for step in steps:
        total = signed(total + step)
        found.append(total)
    return found


def read(frame: bytes) -> Plain:
    """BatchIdentity and records, by sequence number; floats as their eight bytes."""
    head = struct.unpack_from("<8sHHIIIQQIHH", frame)
    magic, version, flags, checksum, stored, size, start, end, records, agent, boot = head
    assert (magic, version, flags & ~1) == (b"\x89HFF\r\n\x1a\n", 1, 0)
    assert zlib.crc32(frame[16:], zlib.crc32(frame[:12])) == checksum
    at = 48 + agent + boot
    assert len(frame) == at + stored
    payload = frame[at:]
    if flags & 1:
        payload = pa.Codec("zstd").decompress(payload, decompressed_size=size, asbytes=True)
    columns = Columns(payload)
    found = dict(_records(columns, struct.unpack("<17I", columns.raw(68))))
    assert columns.at == len(payload) == size
    assert len(found) == records
    assert (min(found), max(found)) == (start, end)
    names = frame[48 : 48 + agent].decode(), frame[48 + agent : at].decode()
    return {"identity": [*names, start, end], "records": [[seq, found[seq]] for seq in sorted(found)]}


def _records(columns: Columns, counts: tuple[int, ...]) -> list[tuple[int, Any]]:
    texts = columns.texts(counts[0], counts[1])
    lengths = columns.ints(counts[2])
    names, values = columns.steps(counts[3]), columns.steps(counts[3])
    pairs = iter([(texts[name], texts[value]) for name, value in zip(names, values, strict=True)])
    sets = [dict([next(pairs) for _ in range(length)]) for length in lengths]
    found: list[tuple[int, Any]] = []
    if counts[5]:
        for seq, kind, name, labels, time_ns, value in _samples(columns, counts[4:7], texts, sets):
            found.append((seq, [["gauge", "counter"][kind], name, labels, time_ns, value]))
    if counts[8]:
        found += _histograms(columns, counts[7:13], texts, sets)
    if logs := counts[13]:
        seqs, times, severities = columns.steps(logs), columns.steps(logs), columns.ints(logs)
        attributes, messages = columns.steps(logs), columns.texts(logs, counts[14])
        for seq, time_ns, severity, number, message in zip(seqs, times, severities, attributes, messages, strict=True):
            found.append((seq, ["log", message, severity, sets[number], time_ns]))
    if alerts := counts[15]:
        seqs, times, states = columns.steps(alerts), columns.steps(alerts), columns.ints(alerts)
        alert_names, alert_labels = columns.steps(alerts), columns.steps(alerts)
        valued, bits = columns.ints(alerts), columns.steps(alerts)
        messages = columns.texts(alerts, counts[16])
        for at, seq in enumerate(seqs):
            value = struct.pack("<q", bits[at]).hex() if valued[at] else None
            alert = [
                "alert",
                texts[alert_names[at]],
                states[at],
                sets[alert_labels[at]],
                times[at],
                value,
                messages[at],
            ]
            found.append((seq, alert))
    return found


def _samples(
    columns: Columns, counts: tuple[int, ...], texts: list[str], sets: list[dict[str, str]]
) -> list[tuple[int, int, str, dict[str, str], int, Any]]:
    series, _, times = counts
    kinds, scales = columns.ints(series), columns.ints(series)
    names, labels, lengths = columns.steps(series), columns.steps(series), columns.ints(series)
    seqs = columns.grouped(lengths, related=True)
    table = columns.steps(times) if times else []
    moments = columns.grouped(lengths, related=True)
    numbers = columns.grouped(lengths, related=False)
    of = [number for number, length in enumerate(lengths) for _ in range(length)]
    return [
        (
            seq,
            kinds[number],
            texts[names[number]],
            sets[labels[number]],
            table[moments[at]] if times else moments[at],
            _value(scales[number], numbers[at]),
        )
        for at, (seq, number) in enumerate(zip(seqs, of, strict=True))
    ]


def _value(scale: int, number: int) -> int | str:
    if scale == 1:
        return number
    return struct.pack("<q" if scale == 0 else "<d", number if scale == 0 else number / DIVISORS[scale]).hex()


def _histograms(
    columns: Columns, counts: tuple[int, ...], texts: list[str], sets: list[dict[str, str]]
) -> list[tuple[int, Any]]:
    samples = _samples(columns, counts[:3], texts, sets)
    sizes = columns.ints(counts[3])
    bits = iter(columns.steps(counts[4]))
    bounds = [[struct.pack("<q", next(bits)).hex() for _ in range(size)] for size in sizes]
    layouts = columns.steps(len(samples))
    steps = iter(columns.ints(counts[5]))
    rows: list[Any] = []
    for number, size in enumerate(sizes):
        height = layouts.count(number)
        buckets = [sums([next(steps) for _ in range(height)]) for _ in range(size + 1)]
        rows.append(iter([list(row) for row in zip(*buckets, strict=True)]))
    return [
        (seq, ["histogram", name, bounds[layout], next(rows[layout]), total, labels, time_ns])
        for (seq, _, name, labels, time_ns, total), layout in zip(samples, layouts, strict=True)
    ]
