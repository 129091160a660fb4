"""A database that a session leaves as it found it, for the next session of this process.

To open a database takes ten milliseconds of a processor, and many sessions ask one question. One in which nothing was
ever written, with nothing running in it and no more than a few megabytes read, is kept instead of closed: one, until
somebody opens a session with the same limit. Its bars stay as they are. The folder that it may read is removed, and
made anew by the same name; no file there ever has a name that one had before, so that nothing which DuckDB remembers of
files can be mistaken.

A process that was forked off has none: the threads of a database do not come along.
"""

import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb


@dataclass(frozen=True, slots=True)
class Spare:
    root: duckdb.DuckDBPyConnection
    terms: tuple[str, ...]
    """The memory limit, and the folders besides its own that it may read."""
    folder: Path
    names: int
    """How many files there were in its folder so far."""
    memory_bytes: int
    process: int = 0
    """Who left it."""


_lock = threading.Lock()
_kept: list[Spare] = []


def take(terms: tuple[str, ...]) -> Spare | None:
    """The database that is kept, if it is one like that."""
    with _lock:
        if _kept and _kept[-1].terms == terms and _kept[-1].process == os.getpid():
            return _kept.pop()
    return None


def leave(spare: Spare) -> None:
    """Keep this one, and close the one that is kept."""
    for each in _replace([replace(spare, process=os.getpid())]):
        each.root.close()


def drop() -> None:
    """Close the one that is kept."""
    for each in _replace([]):
        each.root.close()


def _replace(by: list[Spare]) -> list[Spare]:
    with _lock:
        # What was kept before a fork is not ours to close: that would wait for threads which are not there.
        older = [each for each in _kept if each.process == os.getpid()]
        _kept[:] = [*(each for each in _kept if each.process != os.getpid()), *by]
    return older
