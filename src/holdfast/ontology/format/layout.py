"""The keys of an ontology's objects. Pure: from names to keys, and back from listed keys.

    meta/head.json                                      the head: the only object that decides anything
    meta/locks/ontology_write.json                      the write lease
    meta/schema/types.json registry.json dropped.json   derived from the chain, for plain readers
    meta/schema/versions/{kind}/{Type}.json             as above
    meta/indices/{entities|relations}/{Type}.json       derived: which files have a type's rows
    meta/checkpoints/{id}-{attempt}.json                derived: the files of a span of commits
    commits/{id}-{attempt}/manifest.json                one commit; part of history if the head's chain leads to it
    commits/{id}-{attempt}/{entities|relations}/{Type}.parquet
    snapshots/{entities|relations}/{Type}-{first}-{last}-{attempt}.parquet    the rows of a span of commits in one file
    meta/tags.json                                      names for commits
    meta/redactions/{id}-{attempt}.json                 which files a redaction has changed
    meta/loads/{load}/{kind}-{Type}-{what}-{unique}.parquet    staged rows of a bulk load
    meta/engine.json                                    marks a store of another engine; absent here

``{attempt}`` is random and used once, so two writers never write the same key. Snapshots of plain writers have none, so
they may be overwritten.
"""

import re

HEAD = "meta/head.json"
LOCK = "meta/locks/ontology_write.json"
TYPES = "meta/schema/types.json"
REGISTRY = "meta/schema/registry.json"
DROPPED = "meta/schema/dropped.json"
ENGINE = "meta/engine.json"
TAGS = "meta/tags.json"
COMMITS = "commits/"
SNAPSHOTS = "snapshots/"
INDICES = "meta/indices/"
REDACTIONS = "meta/redactions/"
LOADS = "meta/loads/"

_PLURAL = {"entity": "entities", "relation": "relations"}
_SNAPSHOT = re.compile(r"snapshots/(?:entities|relations)/[^/]+?-(\d+)-(\d+)(-[^/-]+)?\.parquet")
_FOLDER = re.compile(r"commits/(\d+)-[^/]+/")
_IN_FOLDER = re.compile(r"(commits/\d+-[^/]+/).+")
_LOADED = re.compile(r"meta/loads/([^/]+)/(entity|relation)-([^/-]+)-[^/-]+-[^/-]+\.parquet")


def versions_key(kind: str, name: str) -> str:
    return f"meta/schema/versions/{kind}/{name}.json"


def index_key(kind: str, name: str) -> str:
    return f"meta/indices/{_PLURAL[kind]}/{name}.json"


def commit_folder(commit_id: int, attempt: str) -> str:
    return f"{COMMITS}{commit_id}-{attempt}/"


def manifest_key(commit_id: int, attempt: str) -> str:
    return f"{commit_folder(commit_id, attempt)}manifest.json"


def data_key(commit_id: int, attempt: str, kind: str, name: str) -> str:
    return f"{commit_folder(commit_id, attempt)}{_PLURAL[kind]}/{name}.parquet"


def snapshot_key(kind: str, name: str, first: int, last: int, attempt: str) -> str:
    return f"{snapshot_prefix(kind, name)}{first}-{last}-{attempt}.parquet"


def snapshot_prefix(kind: str, name: str) -> str:
    return f"{SNAPSHOTS}{_PLURAL[kind]}/{name}-"


def commits_of_snapshot(key: str) -> tuple[int, int] | None:
    """The first and last commit that a snapshot covers; None for any other key."""
    found = _SNAPSHOT.fullmatch(key)
    return (int(found[1]), int(found[2])) if found is not None else None


def attempt_of_snapshot(key: str) -> str:
    """The last part of a snapshot's name; empty for a plain writer's snapshot and any other key."""
    found = _SNAPSHOT.fullmatch(key)
    return (found[3] or "-")[1:] if found is not None else ""


def checkpoint_key(manifest_path: str) -> str:
    """The checkpoint of the commit with this manifest. Named after the attempt, so it fits no other commit."""
    return f"meta/checkpoints/{manifest_path.removeprefix(COMMITS).partition('/')[0]}.json"


def redaction_key(manifest_path: str) -> str:
    """The record of the redaction that this commit ordered."""
    return f"{REDACTIONS}{manifest_path.removeprefix(COMMITS).partition('/')[0]}.json"


def load_prefix(load: str) -> str:
    """The prefix of the files that a bulk load has staged."""
    return f"{LOADS}{load}/"


def load_key(load: str, kind: str, name: str, what: str, unique: str) -> str:
    return f"{load_prefix(load)}{kind}-{name}-{what}-{unique}.parquet"


def load_of_key(key: str) -> str | None:
    """The load that a staged file belongs to; None for any other key."""
    load, slash, _ = key.removeprefix(LOADS).partition("/")
    return load if key.startswith(LOADS) and slash else None


def type_of_load_key(key: str) -> tuple[str, str] | None:
    """Kind and name of the type of a staged file; None for any other key."""
    found = _LOADED.fullmatch(key)
    return (found[2], found[3]) if found is not None else None


def attempt_of_folder(folder: str) -> tuple[int, str]:
    """The commit and the attempt of ``commits/{id}-{attempt}/``."""
    number, _, mark = folder.removeprefix(COMMITS).rstrip("/").partition("-")
    return int(number), mark


def commit_of_folder(folder: str) -> int | None:
    """The commit of ``commits/{id}-{attempt}/``, as a listing returns it; None for any other prefix."""
    found = _FOLDER.fullmatch(folder)
    return int(found[1]) if found is not None else None


def folder_of(key: str) -> str | None:
    """The folder of the attempt that a key belongs to; None for any other key."""
    found = _IN_FOLDER.fullmatch(key)
    return found[1] if found is not None else None


def commit_of_manifest(key: str) -> int | None:
    folder = key.removesuffix("manifest.json")
    return commit_of_folder(folder) if folder != key else None


def immutable(key: str) -> bool:
    """Whether the object never changes, because its key is unique, so that it can be cached.

    Redactions are the exception: they change files of commits, and caches read their records.
    """
    found = _SNAPSHOT.fullmatch(key)
    return key.startswith((COMMITS, "meta/checkpoints/", REDACTIONS)) or (found is not None and found[3] is not None)
