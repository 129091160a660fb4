"""The keys of the bus. Pure: from ids to keys, and back.

    events/{namespace}/{created_at}_{id}.json            an event, immutable; ``:`` in the time is ``-``
    claims/{namespace}/{event_id}/{handler_id}.json      one handler's claim on it: the only object that decides
    dead_letters/{namespace}/{event_id}/{handler_id}.json
    sessions/{namespace}/{session_id}.json
    bus/{namespace}/digest.json                          what consumers know, see ``digest``
    bus/{namespace}/boundary.json                        up to when cleanup may have deleted, see ``publish``
    bus/{namespace}/keys/{hash}.json                     a keyed publish
    bus/{namespace}/schedules/{name}.json                the last tick of a schedule

An event's *name* is ``{created_at}_{id}`` as it is in its key. Names sort by time.
"""

import hashlib
import re
import uuid

from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Corrupt, Invalid

EVENTS = "events/"
CLAIMS = "claims/"
DEAD_LETTERS = "dead_letters/"
SESSIONS = "sessions/"
BUS = "bus/"

MAX_PART_BYTES = 200
BUCKET_CHARS = len("2026-02-11T12-0")
"""Of a name: its ten minutes."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\dT)(\d\d)-(\d\d)-(\d\d(?:\.\d+)?)([+-])(\d\d)-(\d\d)_(.+)")


def check_part(what: str, part: str) -> str:
    """The word, if it can be one component of a key on every store."""
    size = len(part.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_PART_BYTES or "/" in part or part in (".", "..") or not part.isprintable():
        raise Invalid(
            f"{what} {part[:60]!r} is not one printable name of 1 to {MAX_PART_BYTES} bytes without slashes",
            remedy="use letters, digits and marks such as - _ . :",
        )
    return part


def event_name(created_ns: int, event_id: str) -> str:
    return f"{iso(created_ns).replace(':', '-')}_{event_id}"


def time_name(moment_ns: int) -> str:
    """What every name of that moment begins with; it sorts before all of them."""
    return iso(moment_ns).replace(":", "-")


def event_folder(namespace: str) -> str:
    return f"{EVENTS}{namespace}/"


def event_key(namespace: str, name: str) -> str:
    return f"{EVENTS}{namespace}/{name}.json"


def name_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")


def parse_name(name: str) -> tuple[int, str]:
    """The time and the id in an event's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise Corrupt(
            f"{name}: not the name of an event", remedy="remove objects that are not events from below events/"
        )
    day, hour, minute, second, sign, zone_hour, zone_minute, event_id = match.groups()
    return parse_iso(f"{day}{hour}:{minute}:{second}{sign}{zone_hour}:{zone_minute}"), event_id


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def created_ns(name: str) -> int:
    return parse_name(name)[0]


def event_id(name: str) -> str:
    return name.partition("_")[2]


def bucket(name: str) -> str:
    return name[:BUCKET_CHARS]


def claim_folder(namespace: str, event_id: str) -> str:
    return f"{CLAIMS}{namespace}/{event_id}/"


def claim_key(namespace: str, event_id: str, handler_id: str) -> str:
    return f"{CLAIMS}{namespace}/{event_id}/{handler_id}.json"


def dead_letter_folder(namespace: str) -> str:
    return f"{DEAD_LETTERS}{namespace}/"


def dead_letter_key(namespace: str, event_id: str, handler_id: str) -> str:
    return f"{DEAD_LETTERS}{namespace}/{event_id}/{handler_id}.json"


def session_folder(namespace: str) -> str:
    return f"{SESSIONS}{namespace}/"


def session_key(namespace: str, session_id: str) -> str:
    return f"{SESSIONS}{namespace}/{session_id}.json"


def digest_key(namespace: str) -> str:
    return f"{BUS}{namespace}/digest.json"


def boundary_key(namespace: str) -> str:
    return f"{BUS}{namespace}/boundary.json"


def dedupe_folder(namespace: str) -> str:
    return f"{BUS}{namespace}/keys/"


def dedupe_key(namespace: str, key: str) -> str:
    return f"{dedupe_folder(namespace)}{hashlib.sha256(key.encode()).hexdigest()}.json"


def schedule_key(namespace: str, schedule: str) -> str:
    return f"{BUS}{namespace}/schedules/{schedule}.json"


def derived_id(*parts: str) -> str:
    """An event's id that is a function of ``parts``: every worker derives the same."""
    digest = hashlib.sha256("\x00".join(parts).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


def spelled_id(unique: str) -> str:
    """A random 128-bit id in the form that events have."""
    return str(uuid.UUID(hex=unique))


def immutable(key: str) -> bool:
    """Whether the object under this key never changes once it is there."""
    return key.startswith(EVENTS)
