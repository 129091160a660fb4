"""The portal: async objects for blocking code, one thread that ends with it, and a refusal after a fork."""

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast.base.errors import Invalid, NotFound, Unavailable
from holdfast.base.portal import Portal


def portal_threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "holdfast-portal"])


class Well:
    """An async object with every kind of method."""

    def __init__(self, depth: int = 3) -> None:
        self.depth = depth
        self.cancelled = threading.Event()
        self.closed: list[str] = []

    async def draw(self, number: int = 1) -> int:
        await asyncio.sleep(0)
        return self.depth - number

    async def draw_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def fail(self, error: Exception) -> None:
        raise error

    async def hang(self) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def deeper(self) -> "Well":
        return Well(self.depth + 1)

    async def compare(self, other: "Well") -> bool:
        return other.depth == self.depth

    def plain(self) -> str:
        return "plain"

    async def buckets(self) -> AsyncIterator[int]:
        for number in range(self.depth):
            await asyncio.sleep(0)
            yield number
        if self.depth > 3:
            raise NotFound("rope")

    @asynccontextmanager
    async def rope(self, name: str) -> AsyncIterator["Well"]:
        try:
            yield self
        finally:
            self.closed.append(name)

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(self.depth):
            yield number * 10


def test_a_view_of_an_async_object_blocks() -> None:
    well = Well()
    with Portal() as portal:
        view = portal.view(well)
        assert (view.draw(), view.draw(number=3), view.plain(), view.depth) == (2, 0, "plain", 3)
        assert list(view.buckets()) == [0, 1, 2]
        assert list(view) == [0, 10, 20]
        with view.rope("first") as inside:
            assert (inside.draw(), well.closed) == (2, [])
        assert well.closed == ["first"]
        deeper = view.deeper()  # a view again; as an argument it becomes the object
        assert (deeper.draw(), view.compare(deeper), view.compare(other=view)) == (3, False, True)
        for value in (None, 1, "text", [Well()], {"a": 1}):
            assert portal.view(value) is value
        assert repr(view).startswith("<blocking view of <")
        assert view.draw.__name__ == "draw"
        assert {"draw", "buckets", "depth"} <= set(dir(view))
        with pytest.raises(AttributeError, match="no attribute 'missing'"):
            _ = view.missing
        for carry in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(Invalid, match="cannot be copied or sent"):
                carry(view)


def test_errors_are_raised_unchanged_and_leave_no_thread() -> None:
    well = Well()

    def work() -> None:
        with Portal() as portal, portal.view(well).rope("first"):
            portal.enter(well.rope("outer"))
            for error in (NotFound("no water"), TimeoutError("of its own")):
                with pytest.raises(type(error), match=str(error)):
                    portal.view(well).fail(error)
            with pytest.raises(NotFound, match="rope"):
                list(portal.view(Well(4)).buckets())
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert well.closed == ["first", "outer"]
    assert portal_threads() == 0


def test_a_portal_has_one_thread_while_it_is_open_and_none_after() -> None:
    well = Well()
    background: list[asyncio.Task[None]] = []

    async def begin() -> None:
        background.append(asyncio.ensure_future(well.hang()))
        await asyncio.sleep(0)

    before = portal_threads()
    Portal()
    assert portal_threads() == before
    with Portal() as portal:
        assert portal_threads() == before + 1
        view = portal.view(well)
        loop = view.draw_loop()
        portal.enter(well.rope("outer"))
        portal.enter(well.rope("inner"))
        assert next(view.buckets()) == 0  # left early
        portal.wait(begin())  # still running at the end
        with pytest.raises(Invalid, match="opened already"), portal:
            pass
        assert (view.draw(), well.closed) == (2, [])
    assert well.closed == ["inner", "outer"]
    assert well.cancelled.is_set()
    assert portal_threads() == before
    assert loop.is_closed()
    with pytest.raises(Invalid, match="this connection is closed"):
        view.draw()


def test_calls_of_other_threads_end_when_the_portal_closes() -> None:
    def call_until_refused(view) -> None:  # type: ignore[no-untyped-def]
        with suppress(Invalid, Unavailable):  # anything else fails the test, as an exception in a thread
            while True:
                view.draw()

    waiting = 0
    for _ in range(40):
        with Portal() as portal:
            view = portal.view(Well())
            threads = [threading.Thread(target=call_until_refused, args=[view], daemon=True) for _ in range(6)]
            for thread in threads:
                thread.start()
            view.draw()
        for thread in threads:
            thread.join(30)
            waiting += thread.is_alive()
    assert waiting == 0


def test_a_blocking_call_on_the_portals_own_loop_is_refused() -> None:
    with Portal() as portal:
        view = portal.view(Well())

        async def from_inside() -> None:
            view.draw()

        with pytest.raises(Invalid, match="on the portal's own loop"):
            portal.wait(from_inside())


def test_a_call_that_takes_too_long_is_cancelled() -> None:
    well = Well()
    with Portal(timeout=0.05) as portal:
        with pytest.raises(Unavailable, match=r"no answer within 0\.05 s") as caught:
            portal.view(well).hang()
        assert caught.value.maybe_applied
        assert well.cancelled.wait(30)
        with pytest.raises(Unavailable, match=r"no answer within 0\.01 s"):
            portal.wait(Well().hang(), timeout=0.01)
        assert portal.wait(well.draw(), timeout=30) == 2


def script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_forked_child_is_refused_and_may_connect_again() -> None:
    """In a process of its own: forking the test runner would copy its threads' locks."""
    result = script("""
        import os, asyncio
        from holdfast.base.errors import Invalid
        from holdfast.base.portal import Portal

        class Thing:
            async def call(self): return "answer"

        with Portal() as portal:
            view = portal.view(Thing())
            assert view.call() == "answer"
            pid = os.fork()
            if pid == 0:
                try:
                    view.call()
                except Invalid as error:
                    with Portal() as fresh:
                        again = fresh.view(Thing()).call()
                    print(f"{error}; {error.remedy}; {again}", flush=True)
            else:
                os.waitpid(pid, 0)
                print(view.call(), flush=True)
    """)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "this connection was opened before a fork; connect again in the child process; answer",
        "answer",
    ]


def test_ctrl_c_cancels_the_call_and_closes_the_objects() -> None:
    program = textwrap.dedent("""
        import asyncio, threading
        from contextlib import asynccontextmanager
        from holdfast.base.portal import Portal

        class Thing:
            async def hang(self):
                try:
                    print("waiting", flush=True)
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    print("cancelled", flush=True)
                    raise

        @asynccontextmanager
        async def thing():
            try:
                yield Thing()
            finally:
                print("closed", flush=True)

        try:
            with Portal() as portal:
                portal.enter(thing()).hang()
        except KeyboardInterrupt:
            print("interrupted", threading.active_count(), flush=True)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        os.kill(process.pid, signal.SIGINT)
        rest = process.stdout.read().splitlines()
        assert process.wait(60) == 0
    assert sorted(rest[:2]) == ["cancelled", "closed"]
    assert rest[2:] == ["interrupted 1"]
