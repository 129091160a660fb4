"""Keys of all objects of a run, and the rules of names. Pure: from ids to keys, and back for listings.

    runs/{run_id}/journal.jsonl                          the run: the only object that decides anything; never deleted
    runs/{run_id}/segments/{level}-{first}-{attempt}.jsonl   sealed lines, immutable
    runs/{run_id}/payloads/{attempt}                     one large value, immutable
    runs/{run_id}/mail/{event}/{mail_id}.json            events delivered from outside
    runs/{run_id}/forks/{fork_id}.json                   of earlier versions: a fork that shares this run's payloads
    runs/{run_id}/generations/{number}-{attempt}.jsonl   journals retired by continue-as-new
    runs-index/v1/...                                    derived, see ``index``

``{attempt}`` is random and used once, so that two writers never write different bytes under one key.
"""

from functools import lru_cache

from holdfast.base.errors import Invalid

ROOT = "runs/"
INDEX = "runs-index/v1/"
INDEX_OPEN = INDEX + "open/"
INDEX_DONE = INDEX + "done/"

JOURNAL = "journal.jsonl"
MAX_RUN_ID_BYTES = 200

CHILD_EVENT = "child:"
"""A run that waits for a child run waits for the event of this name, followed by the child's id."""

_IMMUTABLE = ("segments", "payloads", "generations")


def check_run_id(run_id: object) -> str:
    """The id, if it can be one component of a key on every store."""
    if not isinstance(run_id, str) or not run_id:
        raise Invalid(f"run id {run_id!r:.40} is not a string or empty", remedy="give it as text")
    size = len(run_id.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_RUN_ID_BYTES:
        raise Invalid(
            f"run id {run_id[:40]!r} has {size} bytes; 1 to {MAX_RUN_ID_BYTES} are allowed",
            remedy="use a shorter id, such as a hash of the long one",
        )
    if "/" in run_id or run_id in (".", "..") or not run_id.isprintable():
        raise Invalid(
            f"run id {run_id!r} is not one printable name without slashes",
            remedy="use letters, digits and marks such as - _ . :",
        )
    return run_id


_FORBIDDEN = frozenset("#[]/")
_MAX_BYTES = 200


def check_name(name: object, what: str = "step") -> str:
    if not isinstance(name, str):
        raise Invalid(f"{what} name {name!r:.40} is a {type(name).__name__}", remedy="give it as text")
    return _checked(name, what)


@lru_cache(maxsize=1024)
def _checked(name: str, what: str) -> str:
    """Remembered: a workflow asks for the same few names over and over."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        raise Invalid(f"{what} name {name[:40]!r} must have 1 to {_MAX_BYTES} bytes")
    if not _FORBIDDEN.isdisjoint(name) or not name.isprintable():
        raise Invalid(
            f"{what} name {name!r} has one of {' '.join(sorted(_FORBIDDEN))} or an unprintable character",
            remedy="choose a plain name; the marks number and key repeated steps",
        )
    return name


def check_event(event: str) -> str:
    check_name(event, "event")
    if event in (".", ".."):
        raise Invalid(f"event name {event!r} cannot be part of a key", remedy="choose another name")
    if event.startswith(CHILD_EVENT):
        raise Invalid(f"event name {event!r} is one that runs use for their children", remedy="choose another name")
    return event


def run_folder(run_id: str) -> str:
    return f"{ROOT}{run_id}/"


def journal_key(run_id: str) -> str:
    return f"{ROOT}{run_id}/{JOURNAL}"


def segment_key(run_id: str, level: int, first: int, attempt: str) -> str:
    return f"{segment_folder(run_id)}{level}-{first:010d}-{attempt}.jsonl"


def segment_folder(run_id: str) -> str:
    return f"{ROOT}{run_id}/segments/"


def payload_key(run_id: str, attempt: str) -> str:
    return f"{payload_folder(run_id)}{attempt}"


def payload_folder(run_id: str) -> str:
    return f"{ROOT}{run_id}/payloads/"


def mail_folder(run_id: str, event: str) -> str:
    return f"{ROOT}{run_id}/mail/{event}/"


def mail_key(run_id: str, event: str, mail_id: str) -> str:
    return f"{mail_folder(run_id, event)}{mail_id}.json"


def fork_folder(run_id: str) -> str:
    return f"{ROOT}{run_id}/forks/"


def id_of(key: str) -> str:
    """The id of a mail in the key of its object."""
    return key.rpartition("/")[2].removesuffix(".json")


def generation_key(run_id: str, number: int, attempt: str) -> str:
    return f"{generation_folder(run_id)}{number:06d}-{attempt}.jsonl"


def generation_folder(run_id: str) -> str:
    return f"{ROOT}{run_id}/generations/"


def run_of_folder(folder: str) -> str:
    """From ``runs/{run_id}/``, as a listing with a delimiter gives it."""
    return folder.removeprefix(ROOT).removesuffix("/")


def immutable(key: str) -> bool:
    """Whether the object under this key never changes once it is there: unique by construction, fit for a cache."""
    parts = key.split("/")
    return len(parts) == 4 and parts[0] == "runs" and parts[2] in _IMMUTABLE
