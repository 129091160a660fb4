"""Versions of bodies that are written over and over, each time longer: only what was appended is hashed.

A version is the hash of all bytes, and a journal or a log is written whole with every line. Whoever has hashed the
bytes before goes on from there: the state of a hash can be kept. The bytes themselves are kept too, and compared, so
that a version is right whatever is written; comparing is some twenty times as fast as hashing.

Only small bodies are kept, and few. Threads share them: what one of them has taken, another does not find.
"""

import hashlib
import threading
from typing import Any, NamedTuple

from holdfast.objects.store import VERSION_DIGITS, Version

BODIES = 16
LARGEST_BYTES = 256 * 1024


class _Hashed(NamedTuple):
    body: bytes
    hasher: Any
    """Of hashlib, which has no name for the type."""


class Hashes:
    def __init__(self) -> None:
        self._last: dict[str, _Hashed] = {}
        """By key, the oldest first."""
        self._lock = threading.Lock()

    def version(self, key: str, body: bytes) -> Version:
        """``content_version`` of the body that is to be written under a key."""
        with self._lock:
            last = self._last.pop(key, None)
        if last is not None and body.startswith(last.body):
            hasher = last.hasher
            hasher.update(memoryview(body)[len(last.body) :])
        else:
            hasher = hashlib.sha256(body)
        version = Version(hasher.hexdigest()[:VERSION_DIGITS])
        if len(body) <= LARGEST_BYTES:
            with self._lock:
                self._last[key] = _Hashed(body, hasher)
                if len(self._last) > BODIES:
                    del self._last[next(iter(self._last))]
        return version
