"""Agents, judged by the objects in the store and the bytes on their disks: nothing lost, nothing renumbered."""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done, Operation
from holdfast.telemetry.frame import decode
from holdfast.telemetry.records import Gauge, Log

KEPT = "what was queued is accepted, parked or in the queue"
ONE_MEANING = "a sequence number means one record"
NO_GAP = "sequence numbers have no gap"
LINE_ONCE = "a line is queued once"
CUT_ONCE = "batches do not overlap"
DELIVERED = "in the end nothing waits"
RIVAL = "rival"


@dataclass
class _Seen:
    """All that can be found of one agent."""

    records: dict[int, set[str]] = field(default_factory=dict)
    ranges: set[tuple[int, int]] = field(default_factory=set)

    def add(self, frame: bytes) -> None:
        batch = decode(frame)
        found = {each.seq: _text(each.record) for each in batch.records()}
        if RIVAL in found.values():
            return
        for seq, text in found.items():
            self.records.setdefault(seq, set()).add(text)
        self.ranges.add((batch.identity.seq_start, batch.identity.seq_end))


def nothing_lost(
    objects: Mapping[str, bytes],
    disks: Mapping[str, Mapping[str, bytes]],
    operations: Sequence[Operation],
    resolved: Mapping[str, set[tuple[int, int]]],
) -> Iterator[Violation]:
    """``disks`` has the disks of agents that came to their end; of others less can be said."""
    seen: dict[str, _Seen] = {}
    for key, body in objects.items():
        if key.startswith("accepted/v1/"):
            manifest = json.loads(body)
            seen.setdefault(manifest["agent_id"], _Seen()).add(objects[manifest["raw_blob_key"]])
    for agent, files in disks.items():
        for frame in _frames(files):
            seen.setdefault(agent, _Seen()).add(frame)
    for agent, found in sorted(seen.items()):
        yield from _consistent(agent, found)
    for agent in sorted(disks):
        yield from _complete(agent, seen.get(agent, _Seen()), operations, resolved.get(agent, set()))


def _consistent(agent: str, found: _Seen) -> Iterator[Violation]:
    lines: dict[str, int] = {}
    for seq, texts in sorted(found.records.items()):
        if len(texts) > 1:
            yield Violation(ONE_MEANING, f"{agent} {seq}: {sorted(texts)}")
        for text in texts:
            if text.startswith("line") and lines.setdefault(text, seq) != seq:
                yield Violation(LINE_ONCE, f"{agent}: {text} is {lines[text]} and {seq}")
    end = -1
    for start, stop in sorted(found.ranges):
        if start <= end:
            yield Violation(CUT_ONCE, f"{agent}: {start}-{stop} begins before {end}")
        end = max(end, stop)


def _complete(
    agent: str, found: _Seen, operations: Sequence[Operation], resolved: set[tuple[int, int]]
) -> Iterator[Violation]:
    explained = {seq for start, stop in resolved for seq in range(start, stop + 1)}
    for operation in operations:
        if operation.call != "append" or operation.key != agent or not isinstance(operation.outcome, Done):
            continue
        identity: Any = operation.outcome.value
        for seq, text in enumerate(operation.argument, identity.seq_start):
            if text not in found.records.get(seq, set()) and seq not in explained:
                yield Violation(KEPT, f"{agent} {seq}: {text}")
    numbers = set(found.records) | explained
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    if missing:
        yield Violation(NO_GAP, f"{agent}: {missing[:5]} of {max(numbers)}")


def _frames(files: Mapping[str, bytes]) -> Iterator[bytes]:
    for name, data in files.items():
        if not name.endswith((".segment", ".parked")):
            continue
        at = 0
        while at + 16 <= len(data):
            note, frame = struct.unpack_from("<II", data, at + 4)
            if at + 16 + note + frame > len(data):
                break
            if frame:
                yield data[at + 16 + note : at + 16 + note + frame]
            at += 16 + note + frame


def _text(record: Any) -> str:
    if isinstance(record, Log):
        return record.message
    return f"sample {record.value}" if isinstance(record, Gauge) else str(record)
