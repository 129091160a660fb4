"""The door to the disk: an open file or folder is forced to it off the loop, by the kernel itself where it can
(``ring``), else by a thread of the loop."""

import asyncio
import ctypes
import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from holdfast.base.crew import Call, crew_of
from holdfast.base.ring import Ended, Ring, forced, system

T = TypeVar("T")

RINGS = True
"""Whether the kernel is asked for a ring at all."""

_WAIT_AFTER = 4  # of sync_file_range

_rings: "WeakKeyDictionary[asyncio.AbstractEventLoop, Ring | None]" = WeakKeyDictionary()


def force(descriptor: int, ended: Ended) -> None:
    """Force an open file to disk; it may be closed when it has ended."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        ended(forced(descriptor))
        return
    ring = _ring_of(loop) if RINGS else None
    if ring is None or not ring.force(descriptor, ended, loop):
        _instead(descriptor, ended)


def _instead(descriptor: int, ended: Ended) -> None:
    _by_a_thread(asyncio.get_running_loop(), partial(forced, descriptor), ended)


def hurry() -> None:
    """Have the disk go to work on what it was asked for, although the loop's next turn may be a while off."""
    ring = _rings.get(asyncio.get_running_loop())
    if ring is not None:
        ring.ask()


def force_filesystem(descriptor: int, ended: Ended) -> None:
    """Force all of the filesystem to disk that an open folder is on."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        ended(_forced_as_a_whole(descriptor))
    else:
        _by_a_thread(loop, partial(_forced_as_a_whole, descriptor), ended)


def _forced_as_a_whole(descriptor: int) -> OSError | None:
    if system().syncfs(descriptor) < 0:
        return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    # Where there is no journal, ext4 has the disk empty its own memory before the last names have gone there.
    return forced(descriptor)


def lost_since(descriptor: int) -> OSError | None:
    """What the system could not write of an open file since it was opened, if this descriptor was not told of it yet.
    Of what is still to be written it says nothing."""
    if system().sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WAIT_AFTER) < 0:
        return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return None


def _by_a_thread(loop: asyncio.AbstractEventLoop, work: Callable[[], OSError | None], ended: Ended) -> None:
    call: Call[OSError | None] = Call(loop, work)
    call.answer.add_done_callback(partial(_tell, ended))
    crew_of(loop).take(call)


def _tell(ended: Ended, answer: "asyncio.Future[OSError | None]") -> None:
    failed = answer.exception()
    if failed is None:
        ended(answer.result())
        return
    error = OSError(errno.EIO, f"it could not be forced to disk: {failed!r}")
    error.__cause__ = failed
    ended(error)


def _ring_of(loop: asyncio.AbstractEventLoop) -> Ring | None:
    try:
        return _rings[loop]
    except KeyError:
        forget_closed(_rings)
        try:
            ring = Ring(loop, _instead)
        except (OSError, AttributeError):  # not on this system, or not allowed
            ring = None
        _rings[loop] = ring
        return ring


def forget_closed(by_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, T]") -> None:
    """Who waited for something when a loop was closed holds that loop, which would hold what is kept for it."""
    for reference in by_loop.keyrefs():
        loop = reference()
        if loop is not None and loop.is_closed():
            by_loop.pop(loop, None)
