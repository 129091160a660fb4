"""obstore's threads, and two ways in which they break a process.

obstore starts one thread pool at its first request in a process, and offers no call to stop it.

* **Fork.** A forked child inherits the pool without its threads, so every request in it hangs, even that of a new
  client. So the process that started the pool is recorded, and use in any other process is refused.
* **Exit.** A thread that delivers a result may still hold the interpreter lock when the main thread, woken by that
  result, ends the process. CPython then stops the thread in a way that Rust turns into an abort, and the exit code is
  lost (seen in a quarter of short runs). So at exit the main thread waits until such threads run no Python code.
"""

import atexit
import os
import sys
import threading

from holdfast.base.errors import Invalid

_SLICE_SECONDS = 0.002
_SLICES = 500

_started_in: int | None = None
"""The process that owns the threads; None before the first request."""


def check_process(made_in: int) -> None:
    """Called before every request, with the id of the process in which the client was made."""
    if not made_in == _started_in == os.getpid():
        _start(made_in)


def _start(made_in: int) -> None:
    global _started_in  # noqa: PLW0603  # there is one thread pool per process
    if made_in != os.getpid():
        raise Invalid(
            "a cloud store was opened before a fork and used after it",
            remedy="open a new store from its StoreSpec in the child process",
        )
    if _started_in is not None:
        raise Invalid(
            "cloud stores cannot be used in this process: it was forked from one that had used them",
            remedy="start processes with the spawn or forkserver method, or fork before the first request",
        )
    _started_in = made_in
    atexit.register(_wait_for_deliveries)


def _wait_for_deliveries() -> None:
    """Wait until no thread of obstore runs Python code, for about a second at most."""
    pause = threading.Event()
    for _ in range(_SLICES):
        pause.wait(_SLICE_SECONDS)
        ours = {thread.ident for thread in threading.enumerate()}
        if sys._current_frames().keys() <= ours:
            return
