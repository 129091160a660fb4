"""Shapes of answers, for OpenAPI: what stands in each, and whether it is always there."""

from collections.abc import Sequence
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
NUMBER_OR_NONE: Schema = {"type": ["integer", "null"]}
SECONDS_OR_NONE: Schema = {"type": ["number", "null"]}
TEXT_OR_NONE: Schema = {"type": ["string", "null"]}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}


def shape(always: Schema, sometimes: Schema | None = None) -> Schema:
    return {"type": "object", "required": list(always), "properties": {**always, **(sometimes or {})}}


def told(schema: Schema, meaning: str) -> Schema:
    return {**schema, "description": meaning}


def rows(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def error(reasons: Sequence[str], fields: Schema | None = None) -> Schema:
    """The one shape of an error, with what else it has."""
    always = {"kind": TEXT, "reason": {"type": "string", "enum": list(reasons)}, "message": TEXT, "remedy": TEXT}
    return shape({"error": shape(always, fields)})


RECEIPT = shape(
    {
        "duplicate": told(FLAG, "Whether the same bytes were accepted before."),
        "agent_id": TEXT,
        "boot_id": TEXT,
        "seq_start": NUMBER,
        "seq_end": NUMBER,
        "frame_sha256": TEXT,
        "accepted_at_unix_ns": NUMBER,
        "collector_id": TEXT,
    }
)
CONFLICT: Schema = {
    "accepted_manifest_key": TEXT,
    "accepted_frame_sha256": TEXT,
    "quarantine_manifest_key": told(TEXT_OR_NONE, "The record of the conflict; null if there is none yet."),
    "resolution": told(TEXT_OR_NONE, "What an operator decided; null if nobody did."),
}
STANDING: Schema = {
    "collector_id": TEXT,
    "authority_id": TEXT,
    "acceptance": TEXT,
    "store_problem": told(TEXT_OR_NONE, "Why no batch can be accepted."),
    "references_owed": told(NUMBER, "Derived references still to be written."),
    "references_dropped": told(NUMBER, "Left to the reconciler."),
    "spool_batches": told(NUMBER_OR_NONE, "Accepted on this disk, and not in the store yet; null without a spool."),
    "landing_lag_s": told(SECONDS_OR_NONE, "Since when not all of them have landed; null without a spool."),
    "landing_problem": told(TEXT_OR_NONE, "Why the last round has left some behind."),
    "live_rebuilt": told(FLAG, "Whether live state was filled from the store."),
    "follow_lag_s": told(SECONDS_OR_NONE, "Of a query collector: since it has seen all."),
    "reconcile_lag_s": told(SECONDS_OR_NONE, "How old what is reconciled is."),
    "reconcile_problem": told(TEXT_OR_NONE, "Why that cannot be told."),
    "tokens_problem": told(TEXT_OR_NONE, "Why the token file was not read again."),
}
READY = shape({"status": TEXT, **STANDING})
READY_TO_ALL = shape({"status": TEXT})
ALIVE = shape({"status": TEXT, "collector_id": TEXT})

_OF: Schema = {"agent": TEXT, "boot": TEXT}
_RECORD: Schema = {**_OF, "seq": NUMBER, "time_ns": NUMBER}
_VALUE: Schema = {"description": "A number; NaN, +Inf and -Inf are texts; a histogram is an object."}
_POINT: Schema = {"type": "array", "description": "[time_ns, value]", "prefixItems": [NUMBER, _VALUE]}
SERIES = shape({**_OF, "kind": TEXT, "name": TEXT, "labels": LABELS, "points": rows(_POINT)})
LOG = shape({**_RECORD, "severity": NUMBER, "attributes": LABELS, "message": TEXT})
ALERT = shape({**_RECORD, "name": TEXT, "state": TEXT, "labels": LABELS, "value": _VALUE, "message": TEXT})
_COMPLETENESS: Schema = {
    "complete": told(FLAG, "Whether all that was acknowledged before through_unix_ns is here."),
    "collector_id": TEXT,
    "since_unix_ns": told(NUMBER, "Where the window begins."),
    "batches": told(NUMBER, "In live state."),
}
_HOW_FAR: Schema = {
    "partial_because": told(TEXT, "Of an answer that is not complete."),
    "through_unix_ns": told(NUMBER, "Of an answer that is."),
}
_FOUND: Schema = {
    "series": rows(SERIES),
    "logs": rows(LOG),
    "alerts": rows(ALERT),
    "truncated": told(FLAG, "Whether there was more."),
}
LIVE = shape({**_COMPLETENESS, **_FOUND}, _HOW_FAR)
EVENTS: dict[str, Schema] = {
    "hello": told(shape(_COMPLETENESS, _HOW_FAR), "The first event: how complete live state is."),
    "completeness": told(shape(_COMPLETENESS, _HOW_FAR), "The same whenever that changes, and every 15 s."),
    "batch": told(
        shape({"identity": TEXT, "collector_id": told(TEXT, "Who accepted it."), **_FOUND}),
        "What fits of one accepted batch.",
    ),
    "missed": told(
        shape({"batches": told(NUMBER, "So many were dropped before the next event.")}), "The reader was too slow."
    ),
}
"""Of the stream: what stands in ``data`` of each, by its name."""
