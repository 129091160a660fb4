"""A spool, judged by its disk and the object store: what was acknowledged is there, once, whatever was restarted."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.sim.checkers.ingest import Ledger
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done, Failed, Operation

KEPT = "what a spool acknowledged is on its disk or in the store"
NEW_ONCE = "a spool calls a batch new once"
NEW_FIRST = "what a spool calls a duplicate was new to somebody before"
EFFECT_ONCE = "effects follow once from what a spool takes"
ALWAYS = "a spool takes batches whatever the store does"
SHOWN = "what was acknowledged is in live state once that was rebuilt"
TRUE_CONFLICT = "a spool's conflict is between different bytes"


def spooled_once(
    ledger: Ledger, operations: Sequence[Operation], disk: Mapping[str, bytes] | None
) -> Iterator[Violation]:
    """``disk`` is what lay there at the end; None if its machine never came to an end."""
    yield from ledger.violations
    new: dict[str, Operation] = {}
    again: dict[str, Operation] = {}
    unheard: set[str] = set()
    """Batches of which somebody never got an answer: it may have been told that they are new."""
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
        told: Any = operation.outcome.value
        if told.duplicate is None:
            if told.sha256 == operation.argument:
                yield Violation(TRUE_CONFLICT, f"[{operation}] with itself")
            continue
        if told.duplicate is False:
            if operation.key in new:
                yield Violation(NEW_ONCE, f"[{operation}] and [{new[operation.key]}]")
            new[operation.key] = operation
        else:
            again[operation.key] = operation
        if disk is not None and operation.argument not in _held(ledger, disk):
            yield Violation(KEPT, f"[{operation}]")
    for key in again.keys() - new.keys() - unheard:
        yield Violation(NEW_FIRST, f"[{again[key]}]")


def _held(ledger: Ledger, disk: Mapping[str, bytes]) -> set[str]:
    """Hashes of all bytes that can be found again: by a pending file, a manifest, or a conflict on record."""
    held = {hashlib.sha256(body).hexdigest() for key, body in disk.items() if key.startswith("pending/")}
    named = [document["raw_blob_key"] for document in ledger.manifests.values()]
    named += [
        json.loads(body)["submitted_raw_blob_key"]
        for key, body in ledger.objects.items()
        if key.startswith("quarantine/v1/identity-conflict/")
    ]
    return held | {hashlib.sha256(ledger.objects[key]).hexdigest() for key in named if key in ledger.objects}


def shown(operations: Sequence[Operation], *, beside_others: bool = False) -> Iterator[Violation]:
    """A rebuild tells which manifests it knows at its end. Beside others it knows what was from before it began."""
    for rebuilt in operations:
        if rebuilt.call == "rebuild" and isinstance(rebuilt.outcome, Done):
            known: Any = rebuilt.outcome.value
            until = rebuilt.called if beside_others else rebuilt.returned
            for operation in operations:
                told = operation.call == "accept" and isinstance(operation.outcome, Done)
                if told and operation.returned < until and operation.key not in known:
                    yield Violation(SHOWN, f"[{operation}], and then [{rebuilt}]")
