"""The keys of the pipeline's own state. Pure. What it derives is stored where ``rollup.layout`` says.

    meta/pipeline/reconcile.json                     how far the reconciler has come; see ``checkpoint``
    meta/pipeline/recent/{id}.bin                    what it has seen lately; the checkpoint names the one that counts
    meta/pipeline/clock.json                         written to learn the time of the store's clock
    meta/pipeline/coverage/{shard}.json              sequence numbers that are known, by agent and boot
    meta/pipeline/due/{kind}/{hour}/{listing}.json   a listing that no generation of this kind covers yet
    meta/pipeline/due/finish/{hour}/{id}.json        an hour in several units, to be derived in fewer
    meta/pipeline/problems/v1/{finding}/{id}.json    what an operator should see
    meta/pipeline/lease/{job}.json                   which driver works on a job now: fairness, not safety
    meta/pipeline/audits/v1/{id}.json                recorded audits; see ``audited``

An hour is one word in a key, ``2026-01-31T12``, in UTC.
"""

import hashlib
import re
from datetime import UTC, datetime

from holdfast.telemetry.accept.reconcile import Finding
from holdfast.telemetry.rollup.layout import hour_name
from holdfast.telemetry.rollup.manifest import Kind

CHECKPOINT = "meta/pipeline/reconcile.json"
CLOCK = "meta/pipeline/clock.json"
RECENT = "meta/pipeline/recent/"
COVERAGE = "meta/pipeline/coverage/"
DUE = "meta/pipeline/due/"
PROBLEMS = "meta/pipeline/problems/v1/"
LEASES = "meta/pipeline/lease/"

FINISH = "finish"
"""The kind of a mark, beside those of derived data."""
SHARDS = 64
_DUE = re.compile(re.escape(DUE) + r"([a-z]+)/(\d{4}-\d\d-\d\dT\d\d)/([0-9a-f]{64})\.json")


def recent_key(ident: str) -> str:
    return f"{RECENT}{ident}.bin"


def shard_of(agent_id: str) -> int:
    return hashlib.sha256(agent_id.encode()).digest()[0] % SHARDS


def coverage_key(shard: int) -> str:
    return f"{COVERAGE}{shard:02d}.json"


def hour_named(name: str) -> int:
    day, _, hour = name.partition("T")
    moment = datetime.fromisoformat(day).replace(hour=int(hour), tzinfo=UTC)
    return int(moment.timestamp()) // 3600


def due_folder(kind: str) -> str:
    return f"{DUE}{kind}/"


def due_key(kind: str, hour: int, listing_id: str) -> str:
    return f"{due_folder(kind)}{hour_name(hour)}/{listing_id}.json"


def due_in(key: str) -> tuple[str, int, str] | None:
    """Kind, hour and listing of a mark; None if the key is none."""
    found = _DUE.fullmatch(key)
    if found is None or found[1] not in {*Kind, FINISH}:
        return None
    try:
        return found[1], hour_named(found[2]), found[3]
    except ValueError:
        return None


def problem_key(finding: Finding, ident: str) -> str:
    return f"{PROBLEMS}{finding}/{ident}.json"


def lease_key(job: str) -> str:
    return f"{LEASES}{job}.json"
