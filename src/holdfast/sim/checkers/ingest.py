"""Accepted batches, agents and spools, judged by objects and disks alone.

Reads keys and JSON by itself and shares nothing with the code that it judges: which manifests landed, what they name,
the answers to senders; that agents lose and renumber nothing; that what a spool acknowledged is there, once, whatever
was restarted.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.sim.history import Done, Failed, Landing, Operation, Violation, answers, states
from holdfast.telemetry.frame import decode
from holdfast.telemetry.records import Gauge, Log

ONE_MANIFEST = "an identity is accepted once"
RESOLVES = "a manifest resolves to its bytes"
ACKNOWLEDGED = "what was acknowledged is accepted"
ONE_WINNER = "one submission of an identity is new"
TRUE_CONFLICT = "a conflict is between different bytes, and recorded"
ONCE = "effects follow once from an acceptance, where it happened"
KNOWN = "a collector knows what it has accepted"
NO_EFFECT = "what failed has accepted nothing"

_ACCEPTED = "accepted/v1/"
_BLOBS = "raw-blobs/v1/"
_EXPIRED = "expired/v1/"
"""A record under it says that the bytes of the manifest of the same name expired."""


@dataclass
class Ledger:
    """The course of the acceptance objects, replayed from what landed."""

    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    landed_at: dict[str, int] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    """Keys of all objects that were ever there: the record of a conflict goes once that is resolved for good."""
    violations: list[Violation] = field(default_factory=list)


def replayed(landings: Sequence[Landing]) -> Ledger:
    ledger = Ledger()
    for landing, objects in states(landings):
        ledger.objects = objects
        if landing.body is not None:
            ledger.written.add(landing.key)
        if landing.key.startswith(_ACCEPTED):
            _manifest(ledger, landing)
        elif landing.key.startswith(_BLOBS):
            _blob(ledger, landing)
    return ledger


def accepted_once(ledger: Ledger, operations: Sequence[Operation]) -> Iterator[Violation]:
    """All the rules, over one history."""
    yield from ledger.violations
    won: dict[str, Operation] = {}
    for operation, reported in answers(operations, "accept"):
        yield from _answered(ledger, operation, reported)
        if reported.duplicate is False:
            if operation.key in won:
                yield Violation(ONE_WINNER, f"[{operation}] and [{won[operation.key]}]")
            won[operation.key] = operation
    yield from _effects(ledger, operations, won)
    yield from _failed(ledger, operations)


def _manifest(ledger: Ledger, landing: Landing) -> None:
    before = ledger.manifests.get(landing.key)
    if landing.body is None:
        ledger.violations.append(Violation(ONE_MANIFEST, f"{landing.key} was deleted"))
        return
    document = json.loads(landing.body)
    if before is not None:
        ledger.violations.append(Violation(ONE_MANIFEST, f"{landing.key} was written again by {landing.process}"))
        return
    ledger.manifests[landing.key] = document
    ledger.landed_at[landing.key] = landing.position
    body = ledger.objects.get(document["raw_blob_key"])
    if body is None or hashlib.sha256(body).hexdigest() != document["frame_sha256"]:
        ledger.violations.append(Violation(RESOLVES, f"{landing.key} names {document['raw_blob_key']}, not there"))


def _blob(ledger: Ledger, landing: Landing) -> None:
    if landing.body is not None:
        return
    for key, document in ledger.manifests.items():
        let_go = key.replace(_ACCEPTED, _EXPIRED, 1) in ledger.objects
        if document["raw_blob_key"] == landing.key and not let_go:
            ledger.violations.append(Violation(RESOLVES, f"{landing.process} deleted {landing.key}, named by {key}"))


def _answered(ledger: Ledger, operation: Operation, reported: Any) -> Iterator[Violation]:
    document = ledger.manifests.get(operation.key)
    if document is None or ledger.landed_at[operation.key] > operation.returned:
        yield Violation(ACKNOWLEDGED, f"[{operation}], and there was no manifest")
        return
    if reported.sha256 != document["frame_sha256"]:
        yield Violation(ACKNOWLEDGED, f"[{operation}], and {document['frame_sha256']} is accepted")
    if reported.duplicate is not None and operation.argument != document["frame_sha256"]:
        yield Violation(ACKNOWLEDGED, f"[{operation}], and other bytes are accepted")
    if reported.duplicate is None:
        if operation.argument == document["frame_sha256"]:
            yield Violation(TRUE_CONFLICT, f"[{operation}], and these very bytes are accepted")
        if reported.recorded is not None and reported.recorded not in ledger.written:
            yield Violation(TRUE_CONFLICT, f"[{operation}], and {reported.recorded} was never there")


def _effects(ledger: Ledger, operations: Sequence[Operation], won: dict[str, Operation]) -> Iterator[Violation]:
    effects: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.call == "effect":
            effects.setdefault(operation.key, []).append(operation)
            if not _follows(ledger, operation):
                yield Violation(ONCE, f"[{operation}], and that batch was not accepted there before")
    for key, seen in effects.items():
        if len(seen) > 1:
            yield Violation(ONCE, f"{len(seen)} effects of {key}")
    for key, operation in won.items():
        if key not in effects:
            yield Violation(ONCE, f"[{operation}], without effect")
    for operation, reported in answers(operations, "accept"):
        document = ledger.manifests.get(operation.key)
        own = document is not None and document["collector_id"] == operation.process
        if reported.duplicate is True and own and operation.key not in effects:
            yield Violation(KNOWN, f"[{operation}], and it was accepted right there, without effect")


def _follows(ledger: Ledger, effect: Operation) -> bool:
    document = ledger.manifests.get(effect.key)
    if document is None or ledger.landed_at[effect.key] > effect.called:
        return False
    return (document["collector_id"], document["frame_sha256"]) == (effect.process, effect.argument)


def _failed(ledger: Ledger, operations: Sequence[Operation]) -> Iterator[Violation]:
    """A manifest by a process all of whose submissions of it are known to have had no effect."""
    for key, document in ledger.manifests.items():
        tries = [
            operation
            for operation in operations
            if operation.call == "accept" and operation.key == key and operation.process == document["collector_id"]
        ]
        if tries and all(isinstance(operation.outcome, Failed) for operation in tries):
            yield Violation(NO_EFFECT, f"{key} is accepted, and [{tries[-1]}]")


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
    disks: Mapping[str, Sequence[bytes]],
    operations: Sequence[Operation],
    resolved: Mapping[str, set[tuple[int, int]]],
) -> Iterator[Violation]:
    """``disks`` has the frames on the disks of agents that came to their end; of others less can be said."""
    seen: dict[str, _Seen] = {}
    for key, body in objects.items():
        if key.startswith("accepted/v1/"):
            manifest = json.loads(body)
            seen.setdefault(manifest["agent_id"], _Seen()).add(objects[manifest["raw_blob_key"]])
    for agent, frames in disks.items():
        for frame in frames:
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
    for operation, identity in answers(operations, "append"):
        if operation.key != agent:
            continue
        for seq, text in enumerate(operation.argument, identity.seq_start):
            if text not in found.records.get(seq, set()) and seq not in explained:
                yield Violation(KEPT, f"{agent} {seq}: {text}")
    numbers = set(found.records) | explained
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    if missing:
        yield Violation(NO_GAP, f"{agent}: {missing[:5]} of {max(numbers)}")


def _text(record: Any) -> str:
    if isinstance(record, Log):
        return record.message
    return f"sample {record.value}" if isinstance(record, Gauge) else str(record)


SPOOL_KEPT = "what a spool acknowledged is on its disk or in the store"
NEW_ONCE = "a spool calls a batch new once"
NEW_FIRST = "what a spool calls a duplicate was answered as new before"
EFFECT_ONCE = "effects follow once from what a spool takes"
ALWAYS = "a spool takes batches whatever the store does"
SHOWN = "what was acknowledged is in live state once that was rebuilt"
TRUE_SPOOL_CONFLICT = "a spool's conflict is between different bytes"


def spooled_once(ledger: Ledger, operations: Sequence[Operation], disk: Sequence[bytes] | None) -> Iterator[Violation]:
    """``disk`` has the frames on the disk at the end; None if its machine never came to an end."""
    yield from ledger.violations
    new: dict[str, Operation] = {}
    again: dict[str, Operation] = {}
    unheard: set[str] = set()
    """Batches of which a sender got no answer: the answer may have been that they are new."""
    effects: set[str] = set()
    for operation in operations:
        if operation.call == "effect":
            if operation.key in effects:
                yield Violation(EFFECT_ONCE, f"[{operation}], for the second time")
            effects.add(operation.key)
        if operation.call == "accept" and isinstance(operation.outcome, Failed):
            yield Violation(ALWAYS, f"[{operation}]")
        if operation.call != "accept":
            continue
        if not isinstance(operation.outcome, Done):
            unheard.add(operation.key)
            continue
        reported: Any = operation.outcome.value
        if reported.duplicate is None:
            if reported.sha256 == operation.argument:
                yield Violation(TRUE_SPOOL_CONFLICT, f"[{operation}] with itself")
            continue
        if reported.duplicate is False:
            if operation.key in new:
                yield Violation(NEW_ONCE, f"[{operation}] and [{new[operation.key]}]")
            new[operation.key] = operation
        else:
            again[operation.key] = operation
        if disk is not None and operation.argument not in _held(ledger, disk):
            yield Violation(SPOOL_KEPT, f"[{operation}]")
    for key in again.keys() - new.keys() - unheard:
        yield Violation(NEW_FIRST, f"[{again[key]}]")


def _held(ledger: Ledger, disk: Sequence[bytes]) -> set[str]:
    """Hashes of all bytes that can be found again: on the disk, by a manifest, or by a recorded conflict."""
    held = {hashlib.sha256(frame).hexdigest() for frame in disk}
    named = [document["raw_blob_key"] for document in ledger.manifests.values()]
    named += [
        json.loads(body)["submitted_raw_blob_key"]
        for key, body in ledger.objects.items()
        if key.startswith("quarantine/v1/identity-conflict/")
    ]
    return held | {hashlib.sha256(ledger.objects[key]).hexdigest() for key in named if key in ledger.objects}


def shown(operations: Sequence[Operation], *, beside_others: bool = False) -> Iterator[Violation]:
    """A rebuild reports which manifests it knows at its end. Beside others it knows what was from before it began."""
    for rebuilt, known in answers(operations, "rebuild"):
        until = rebuilt.called if beside_others else rebuilt.returned
        for operation, _ in answers(operations, "accept"):
            if operation.returned < until and operation.key not in known:
                yield Violation(SHOWN, f"[{operation}], and then [{rebuilt}]")
