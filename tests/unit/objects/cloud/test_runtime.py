"""At exit, threads that Python does not know of are let out of the interpreter first."""

import _thread
import sys
import threading

from holdfast.objects.cloud import runtime


def strangers() -> set[int]:
    """Threads that run Python code although Python did not start them, as obstore's do."""
    known = {thread.ident for thread in threading.enumerate()}
    return {ident for ident in sys._current_frames() if ident not in known}


def test_the_end_waits_for_a_delivery_under_way() -> None:
    entered, pause = threading.Event(), threading.Event()

    def deliver() -> None:
        entered.set()
        pause.wait(0.05)

    _thread.start_new_thread(deliver, ())
    entered.wait()
    assert strangers()
    runtime._let_deliveries_finish()
    assert not strangers()


def test_the_end_does_not_wait_for_ever() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        entered.set()
        leave.wait()

    _thread.start_new_thread(stay, ())
    entered.wait()
    try:
        runtime._let_deliveries_finish()
        assert strangers()
    finally:
        leave.set()
        runtime._let_deliveries_finish()
