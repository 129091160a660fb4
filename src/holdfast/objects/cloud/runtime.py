"""obstore's threads, and what they do to forks and to the end of the process.

obstore starts one pool of threads at its first request in a process, and has no call to stop it.

* **Fork.** A forked child inherits the pool as a memory of it, without its threads: every request there waits for ever,
  even one of a fresh client. So the process that started the pool is remembered, and use anywhere else is refused.
* **Exit.** A thread that hands over a result may still be inside the interpreter when the main thread, woken by that
  very result, ends the process; CPython then stops the thread in a way that Rust answers with an abort, and the exit
  code is lost (seen in a quarter of short runs). So at exit the main thread lets such threads finish first.
"""

import atexit
import os
import sys
import threading

from holdfast.base.errors import Invalid

_SLICE_SECONDS = 0.002
_SLICES = 500

_started_in: int | None = None
"""The process whose threads these are; None before the first request."""


def stay(owner: int) -> None:
    """Called before every request, with the process that the client was made in: no connection crosses a fork."""
    if owner != os.getpid():
        raise Invalid(
            "a cloud store was opened before a fork and used after it",
            remedy="open a new store from its StoreSpec in the child process",
        )


def enter(owner: int) -> None:
    """Called before every request of obstore's."""
    if not owner == _started_in == os.getpid():
        _start(owner)


def _start(owner: int) -> None:
    global _started_in  # noqa: PLW0603  # the pool itself is one per process
    stay(owner)
    if _started_in is not None:
        raise Invalid(
            "cloud stores cannot be used in this process: it was forked from one that had used them",
            remedy="start processes with the spawn or forkserver method, or fork before the first request",
        )
    _started_in = owner
    atexit.register(_let_deliveries_finish)


def _let_deliveries_finish() -> None:
    """Hand the interpreter over until no thread of obstore's runs Python code; about a second at most."""
    pause = threading.Event()
    for _ in range(_SLICES):
        pause.wait(_SLICE_SECONDS)
        ours = {thread.ident for thread in threading.enumerate()}
        if sys._current_frames().keys() <= ours:
            return
