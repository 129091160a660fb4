"""Keys of ingest: from identities, hashes and times to keys, and back for keys that are listed.

    meta/authority.json                                   who may accept here; see ``authority``
    meta/ingest-holds.json                                agents and boots in quarantine; see ``conflicts``
    meta/pipeline/reconcile.json                          the position of the reconciler
    raw-blobs/v1/sha256/{hh}/{hh}/{sha256}.lmbatch        the bytes of a frame, immutable, named by their hash
    accepted/v1/agent={hex}/boot={hex}/{start}-{end}.json the acceptance of an identity: created once, never deleted
    quarantine/v1/identity-conflict/agent={hex}/boot={hex}/{start}-{end}/{sha256}.json    other bytes, same identity
    quarantine/v1/resolutions/agent={hex}/boot={hex}/{start}-{end}/{sha256}.json          decisions about it
    expired/v1/agent={hex}/boot={hex}/{start}-{end}.json  its bytes were expired; see ``expired``
    raw-blobs-by-time/v1/date={day}/hour={hour}/sha256={sha256}.json                      derived
    accepted-by-time/v1/date={day}/hour={hour}/{manifest_id}.json    written before the manifest; see ``references``
    collector-probes/v1/{collector}                       written while a store takes no batches (``server.readiness``)
    accepted-by-blob/v1/sha256/{hh}/{hh}/{sha256}/agent={hex}/boot={hex}/{start}-{end}.json     derived
    quarantine-by-blob/v1/sha256/{hh}/{hh}/{sha256}/agent={hex}/boot={hex}/{start}-{end}.json   derived

Names of agents and boots are the hexadecimal form of their UTF-8 bytes; sequence numbers have twenty digits, so that
the order of keys is the order of numbers. By-time keys use the time of acceptance (correction 14).
"""

import re
from datetime import UTC, datetime

from holdfast.base.errors import Invalid
from holdfast.telemetry.identity import BatchIdentity

AUTHORITY = "meta/authority.json"
HOLDS = "meta/ingest-holds.json"
RECONCILED = "meta/pipeline/reconcile.json"
BLOBS = "raw-blobs/v1/sha256/"
ACCEPTED = "accepted/v1/"
CONFLICTS = "quarantine/v1/identity-conflict/"
RESOLUTIONS = "quarantine/v1/resolutions/"
EXPIRED = "expired/v1/"
BLOBS_BY_TIME = "raw-blobs-by-time/v1/"
ACCEPTED_BY_TIME = "accepted-by-time/v1/"
PROBES = "collector-probes/v1/"
ACCEPTED_BY_BLOB = "accepted-by-blob/v1/sha256/"
CONFLICTS_BY_BLOB = "quarantine-by-blob/v1/sha256/"

_NANOSECONDS = 1_000_000_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_IDENTITY = re.compile(r"agent=((?:[0-9a-f]{2})+)/boot=((?:[0-9a-f]{2})+)/(\d{20})-(\d{20})")
_BY_TIME = re.compile(re.escape(ACCEPTED_BY_TIME) + r"date=\d{4}-\d\d-\d\d/hour=\d\d/[0-9a-f]{64}\.json")
_BLOB = re.compile(re.escape(BLOBS) + r"([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{64})\.lmbatch")


def identity_path(identity: BatchIdentity) -> str:
    return f"{boot_path(identity.agent_id, identity.boot_id)}{identity.seq_start:020d}-{identity.seq_end:020d}"


def boot_path(agent_id: str, boot_id: str) -> str:
    return f"agent={agent_id.encode().hex()}/boot={boot_id.encode().hex()}/"


def identity_in(key: str) -> BatchIdentity | None:
    """The identity in a key; None if there is none."""
    found = _IDENTITY.search(key)
    if found is None:
        return None
    agent, boot, start, end = found.groups()
    try:
        return BatchIdentity(bytes.fromhex(agent).decode(), bytes.fromhex(boot).decode(), int(start), int(end))
    except (UnicodeDecodeError, Invalid):
        return None


def blob_key(sha256: str) -> str:
    return f"{BLOBS}{_hash_path(sha256)}.lmbatch"


def blob_hash(key: str) -> str | None:
    """The hash in the key of a raw blob; None for another key."""
    found = _BLOB.fullmatch(key)
    if found is None or not found[3].startswith(found[1] + found[2]):
        return None
    return found[3]


def accepted_key(identity: BatchIdentity) -> str:
    return f"{ACCEPTED}{identity_path(identity)}.json"


def expired_key(identity: BatchIdentity) -> str:
    return f"{EXPIRED}{identity_path(identity)}.json"


def conflict_folder(identity: BatchIdentity) -> str:
    return f"{CONFLICTS}{identity_path(identity)}/"


def conflict_key(identity: BatchIdentity, sha256: str) -> str:
    return f"{conflict_folder(identity)}{check_hash(sha256)}.json"


def resolution_key(identity: BatchIdentity, sha256: str) -> str:
    return f"{RESOLUTIONS}{identity_path(identity)}/{check_hash(sha256)}.json"


def accepted_by_time_key(accepted_at_ns: int, identity: BatchIdentity) -> str:
    return f"{ACCEPTED_BY_TIME}{hour_path(accepted_at_ns)}{identity.manifest_id}.json"


def is_by_time(key: str) -> bool:
    """Whether this is the key of a reference by time."""
    return _BY_TIME.fullmatch(key) is not None


def probe_key(collector_id: str) -> str:
    return f"{PROBES}{collector_id.encode().hex()[:200]}"


def blob_by_time_key(time_ns: int, sha256: str) -> str:
    return f"{BLOBS_BY_TIME}{hour_path(time_ns)}sha256={check_hash(sha256)}.json"


def accepted_by_blob_folder(sha256: str) -> str:
    return f"{ACCEPTED_BY_BLOB}{_hash_path(sha256)}/"


def accepted_by_blob_key(sha256: str, identity: BatchIdentity) -> str:
    return f"{accepted_by_blob_folder(sha256)}{identity_path(identity)}.json"


def conflict_by_blob_key(sha256: str, identity: BatchIdentity) -> str:
    return f"{CONFLICTS_BY_BLOB}{_hash_path(sha256)}/{identity_path(identity)}.json"


def hour_path(time_ns: int) -> str:
    moment = datetime.fromtimestamp(time_ns // _NANOSECONDS, UTC)
    return f"date={moment:%Y-%m-%d}/hour={moment:%H}/"


def check_hash(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise Invalid(f"{sha256[:80]!r} is no SHA-256 in lower-case hexadecimal")
    return sha256


def immutable(key: str) -> bool:
    """Whether the bytes under this key never change, so that they may be cached."""
    return key.startswith(BLOBS)


def _hash_path(sha256: str) -> str:
    check_hash(sha256)
    return f"{sha256[:2]}/{sha256[2:4]}/{sha256}"
