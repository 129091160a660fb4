"""Accepted batches, judged by the objects alone: which manifests landed, what they name, what senders were told.

Reads keys and JSON by itself and shares nothing with the code that it judges.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done, Failed, Landing, Operation

ONE_MANIFEST = "an identity is accepted once"
RESOLVES = "a manifest resolves to its bytes"
ACKNOWLEDGED = "what was acknowledged is accepted"
ONE_WINNER = "one submission of an identity is new"
TRUE_CONFLICT = "a conflict is between different bytes, and on record"
ONCE = "effects follow once from an acceptance, where it happened"
KNOWN = "a collector knows what it has accepted"
NO_EFFECT = "what failed has accepted nothing"

_ACCEPTED = "accepted/v1/"
_BLOBS = "raw-blobs/v1/"
_EXPIRED = "expired/v1/"
"""A record under it says that the bytes of the manifest of the same name were let go."""


@dataclass
class Ledger:
    """The course of the acceptance objects, replayed from what landed."""

    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    landed_at: dict[str, int] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)


def replayed(landings: Sequence[Landing]) -> Ledger:
    ledger = Ledger()
    for landing in landings:
        if landing.body is None:
            ledger.objects.pop(landing.key, None)
        else:
            ledger.objects[landing.key] = landing.body
        if landing.key.startswith(_ACCEPTED):
            _manifest(ledger, landing)
        elif landing.key.startswith(_BLOBS):
            _blob(ledger, landing)
    return ledger


def accepted_once(ledger: Ledger, operations: Sequence[Operation]) -> Iterator[Violation]:
    """All the rules, over one history."""
    yield from ledger.violations
    won: dict[str, Operation] = {}
    for operation in operations:
        if operation.call == "accept" and isinstance(operation.outcome, Done):
            yield from _told(ledger, operation, operation.outcome.value)
            if getattr(operation.outcome.value, "duplicate", None) is False:
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


def _told(ledger: Ledger, operation: Operation, told: Any) -> Iterator[Violation]:
    document = ledger.manifests.get(operation.key)
    if document is None or ledger.landed_at[operation.key] > operation.returned:
        yield Violation(ACKNOWLEDGED, f"[{operation}], and there was no manifest")
        return
    if told.sha256 != document["frame_sha256"]:
        yield Violation(ACKNOWLEDGED, f"[{operation}], and {document['frame_sha256']} is accepted")
    if told.duplicate is not None and operation.argument != document["frame_sha256"]:
        yield Violation(ACKNOWLEDGED, f"[{operation}], and other bytes are accepted")
    if told.duplicate is None:
        if operation.argument == document["frame_sha256"]:
            yield Violation(TRUE_CONFLICT, f"[{operation}], and these very bytes are accepted")
        if told.recorded is not None and told.recorded not in ledger.objects:
            yield Violation(TRUE_CONFLICT, f"[{operation}], and {told.recorded} is not there")


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
    for operation in operations:
        if _is_duplicate_of_own(ledger, operation) and operation.key not in effects:
            yield Violation(KNOWN, f"[{operation}], and it was accepted right there, without effect")


def _follows(ledger: Ledger, effect: Operation) -> bool:
    document = ledger.manifests.get(effect.key)
    if document is None or ledger.landed_at[effect.key] > effect.called:
        return False
    return (document["collector_id"], document["frame_sha256"]) == (effect.process, effect.argument)


def _is_duplicate_of_own(ledger: Ledger, operation: Operation) -> bool:
    if operation.call != "accept" or not isinstance(operation.outcome, Done):
        return False
    told: Any = operation.outcome.value
    document = ledger.manifests.get(operation.key)
    return told.duplicate is True and document is not None and document["collector_id"] == operation.process


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
