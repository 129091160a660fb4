"""The door to the disk: an open file or folder is forced to it off the loop, by the kernel itself where it can
(``ring``), else by a thread of the loop."""

import asyncio
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from holdfast.base.crew import Call, crew_of
from holdfast.base.ring import Ended, Ring, forced

T = TypeVar("T")

RINGS = True
"""Whether the kernel is asked for a ring at all."""

_rings: "WeakKeyDictionary[asyncio.AbstractEventLoop, Ring | None]" = WeakKeyDictionary()


def force(descriptor: int, ended: Ended) -> None:
    """Force an open file to disk; it may be closed when it has ended."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        ended(forced(descriptor))
        return
    ring = _ring_of(loop) if RINGS else None
    if ring is None or not ring.force(descriptor, ended):
        call: Call[OSError | None] = Call(loop, partial(forced, descriptor))
        call.answer.add_done_callback(lambda answer: ended(answer.result()))
        crew_of(loop).take(call)


def _ring_of(loop: asyncio.AbstractEventLoop) -> Ring | None:
    try:
        return _rings[loop]
    except KeyError:
        forget_closed(_rings)
        try:
            ring = Ring(loop)
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
