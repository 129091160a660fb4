"""What obstore's threads do to the end of a process: of one of its own, because a test runner may have such too."""

import subprocess
import sys

DELIVERIES = """
import _thread, sys, threading
from holdfast.objects.cloud import runtime

def strangers():
    "Threads that run Python code although Python did not start them, as obstore's do."
    known = {thread.ident for thread in threading.enumerate()}
    return {ident for ident in sys._current_frames() if ident not in known}

entered, leave = threading.Event(), threading.Event()

def deliver(seconds):
    entered.set()
    leave.wait(seconds)

def begin(seconds):
    _thread.start_new_thread(deliver, (seconds,))
    entered.wait()
    print(len(strangers()))
    runtime._wait_for_deliveries()
    print(len(strangers()))
"""


def answer(script: str) -> list[str]:
    run = subprocess.run([sys.executable, "-c", DELIVERIES + script], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_the_exit_waits_for_a_thread_that_delivers_a_result() -> None:
    assert answer("begin(0.05)") == ["1", "0"]


def test_the_exit_waits_for_a_limited_time() -> None:
    then = "leave.set(); runtime._wait_for_deliveries(); print(len(strangers()))"
    assert answer(f"begin(None); {then}") == ["1", "1", "0"]
