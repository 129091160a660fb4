"""The portal: async objects for blocking code, one thread that is gone afterwards, nothing across a fork."""

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

THREAD = "holdfast-portal"


def portal_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


class Well:
    """An async object with every kind of surface."""

    def __init__(self, depth: int = 3) -> None:
        self.depth = depth
        self.cancelled = threading.Event()
        self.closed: list[str] = []

    async def draw(self, number: int = 1) -> int:
        await asyncio.sleep(0)
        return self.depth - number

    async def draw_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def fail(self) -> None:
        raise NotFound("no water")

    async def time_out(self) -> None:
        raise TimeoutError("of its own")

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

    async def broken_buckets(self) -> AsyncIterator[int]:
        yield 1
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


def test_an_async_object_as_blocking_code_sees_it() -> None:
    well = Well()
    with Portal() as portal:
        view = portal.view(well)
        assert (view.draw(), view.draw(number=3), view.plain(), view.depth) == (2, 0, "plain", 3)
        assert list(view.buckets()) == [0, 1, 2]
        assert list(view) == [0, 10, 20]
        with view.rope("first") as inside:
            assert (inside.draw(), well.closed) == (2, [])
        assert well.closed == ["first"]
        deeper = view.deeper()  # a view again, which goes in as what it is a view of
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


def test_errors_come_out_as_themselves_and_leave_no_thread() -> None:
    well = Well()

    def work() -> None:
        with Portal() as portal, portal.view(well).rope("first"):
            portal.enter(well.rope("outer"))
            with pytest.raises(NotFound, match="no water"):
                portal.view(well).fail()
            with pytest.raises(TimeoutError, match="of its own"):
                portal.view(well).time_out()
            walk = portal.view(well).broken_buckets()
            assert next(walk) == 1
            with pytest.raises(NotFound, match="rope"):
                next(walk)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert well.closed == ["first", "outer"]
    assert portal_threads() == []


def test_one_thread_while_it_is_open_and_none_after() -> None:
    well = Well()
    background: list[asyncio.Task[None]] = []

    async def begin() -> None:
        background.append(asyncio.ensure_future(well.hang()))
        await asyncio.sleep(0)

    before = len(portal_threads())
    Portal()
    assert len(portal_threads()) == before
    with Portal() as portal:
        assert len(portal_threads()) == before + 1
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
    assert len(portal_threads()) == before
    assert loop.is_closed()
    with pytest.raises(Invalid, match="this connection is closed"):
        view.draw()


def test_calls_of_other_threads_end_with_it() -> None:
    """They may come at any moment of its end; none is left waiting for an answer."""
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


def call_until_refused(view) -> None:  # type: ignore[no-untyped-def]
    with suppress(Invalid, Unavailable):  # anything else fails the test, as an exception in a thread
        while True:
            view.draw()


def test_on_its_own_loop_it_refuses_instead_of_hanging() -> None:
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
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "this connection was opened before a fork; connect again in the child process; answer",
        "answer",
    ]
    assert result.returncode == 0


def test_a_loop_that_cannot_start_is_an_error_and_no_endless_wait() -> None:
    result = script("""
        import resource
        from holdfast.base.portal import Portal

        with Portal():
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        try:
            with Portal():
                print("started", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
    """)
    assert result.stdout == "Too many open files\n"


def test_ctrl_c_stops_the_call_and_closes_what_is_open() -> None:
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
