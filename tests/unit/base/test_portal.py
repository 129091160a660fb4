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
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast.base import portal as module
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


class TestViews:
    def test_coroutines_block_until_they_are_done(self) -> None:
        with Portal() as portal:
            view = portal.view(Well())
            assert view.draw() == 2
            assert view.draw(number=3) == 0

    def test_plain_methods_and_attributes_pass_through(self) -> None:
        with Portal() as portal:
            view = portal.view(Well())
            assert view.plain() == "plain"
            assert view.depth == 3

    def test_async_iterators_become_iterators(self) -> None:
        with Portal() as portal:
            view = portal.view(Well())
            assert list(view.buckets()) == [0, 1, 2]
            assert list(view) == [0, 10, 20]

    def test_an_iterator_that_fails_fails_where_it_is_used(self) -> None:
        with Portal() as portal:
            walk = portal.view(Well()).broken_buckets()
            assert next(walk) == 1
            with pytest.raises(NotFound, match="rope"):
                next(walk)

    def test_an_iterator_left_early_does_not_hold_up_the_end(self) -> None:
        with Portal() as portal:
            assert next(portal.view(Well()).buckets()) == 0
        assert portal_threads() == []

    def test_async_context_managers_become_context_managers(self) -> None:
        well = Well()
        with Portal() as portal, portal.view(well).rope("first") as inside:
            assert inside.draw() == 2
            assert well.closed == []
        assert well.closed == ["first"]

    def test_a_context_manager_sees_the_error_that_ends_it(self) -> None:
        well = Well()
        with pytest.raises(KeyError), Portal() as portal, portal.view(well).rope("first"):
            raise KeyError
        assert well.closed == ["first"]

    def test_what_comes_back_is_a_view_again_and_goes_in_as_itself(self) -> None:
        with Portal() as portal:
            view = portal.view(Well())
            deeper = view.deeper()
            assert deeper.draw() == 3
            assert view.compare(deeper) is False
            assert view.compare(other=view) is True

    def test_values_stay_values(self) -> None:
        with Portal() as portal:
            for value in (None, 1, 1.5, "text", b"bytes", [Well()], (1,), {"a": 1}):
                assert portal.view(value) is value

    def test_errors_come_out_as_themselves(self) -> None:
        with Portal() as portal, pytest.raises(NotFound, match="no water"):
            portal.view(Well()).fail()

    def test_a_view_says_what_it_is(self) -> None:
        with Portal() as portal:
            view = portal.view(Well())
            assert repr(view).startswith("<blocking view of <")
            assert view.draw.__name__ == "draw"

    def test_a_notebook_can_complete_its_names(self) -> None:
        with Portal() as portal:
            assert {"draw", "buckets", "depth"} <= set(dir(portal.view(Well())))

    @pytest.mark.parametrize("carry", [copy.copy, copy.deepcopy, pickle.dumps])
    def test_a_view_is_not_carried_elsewhere(self, carry) -> None:  # type: ignore[no-untyped-def]
        with Portal() as portal, pytest.raises(Invalid, match="cannot be copied or sent"):
            carry(portal.view(Well()))

    def test_what_the_object_does_not_have_the_view_does_not_have(self) -> None:
        with Portal() as portal, pytest.raises(AttributeError, match="no attribute 'missing'"):
            _ = portal.view(Well()).missing


class TestLife:
    def test_one_thread_while_it_is_open_and_none_after(self) -> None:
        before = len(portal_threads())
        with Portal() as portal:
            assert len(portal_threads()) == before + 1
            loop = portal.view(Well()).draw_loop()
            assert loop.is_running()
        assert len(portal_threads()) == before
        assert loop.is_closed()

    def test_making_one_starts_nothing(self) -> None:
        before = threading.active_count()
        Portal()
        assert threading.active_count() == before

    def test_what_was_entered_is_left_in_reverse_order(self) -> None:
        well = Well()
        with Portal() as portal:
            portal.enter(well.rope("outer"))
            portal.enter(well.rope("inner"))
            assert well.closed == []
        assert well.closed == ["inner", "outer"]

    def test_an_error_in_the_body_leaves_no_thread(self) -> None:
        well = Well()

        def work() -> None:
            with Portal() as portal:
                portal.enter(well.rope("outer"))
                raise KeyError

        with pytest.raises(KeyError):
            work()
        assert well.closed == ["outer"]
        assert portal_threads() == []

    def test_a_task_that_is_still_running_is_cancelled_at_the_end(self) -> None:
        well = Well()

        async def begin() -> None:
            background.append(asyncio.ensure_future(well.hang()))
            await asyncio.sleep(0)

        background: list[asyncio.Task] = []
        with Portal() as portal:
            portal.wait(begin())
        assert well.cancelled.is_set()

    def test_after_the_end_it_refuses(self) -> None:
        with Portal() as portal:
            view = portal.view(Well())
        with pytest.raises(Invalid, match="this connection is closed"):
            view.draw()

    def test_one_that_is_open_is_not_opened_again(self) -> None:
        with Portal() as portal:
            with pytest.raises(Invalid, match="opened already"), portal:
                pass
            assert portal.view(Well()).draw() == 2

    def test_calls_of_other_threads_end_with_it(self) -> None:
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

    def test_on_its_own_loop_it_refuses_instead_of_hanging(self) -> None:
        with Portal() as portal:
            view = portal.view(Well())

            async def from_inside() -> None:
                view.draw()

            with pytest.raises(Invalid, match="on the portal's own loop"):
                portal.wait(from_inside())

    def test_two_portals_do_not_meet(self) -> None:
        with Portal() as first, Portal() as second:
            assert first.view(Well()).draw_loop() is not second.view(Well()).draw_loop()


def call_until_refused(view) -> None:  # type: ignore[no-untyped-def]
    with suppress(Invalid, Unavailable):  # anything else fails the test, as an exception in a thread
        while True:
            view.draw()


class TestTimeouts:
    def test_a_call_that_takes_too_long_is_cancelled(self) -> None:
        well = Well()
        with Portal(timeout=0.05) as portal:
            with pytest.raises(Unavailable, match=r"no answer within 0\.05 s") as caught:
                portal.view(well).hang()
            assert caught.value.maybe_applied
            assert well.cancelled.wait(30)

    def test_a_limit_for_one_call_wins(self) -> None:
        with Portal() as portal, pytest.raises(Unavailable, match=r"no answer within 0\.01 s"):
            portal.wait(Well().hang(), timeout=0.01)

    def test_a_call_s_own_timeout_is_its_own(self) -> None:
        with Portal(timeout=30) as portal, pytest.raises(TimeoutError, match="of its own"):
            portal.view(Well()).time_out()

    def test_an_answer_at_the_last_moment_is_an_answer(self) -> None:
        class LastMoment(Future):
            def result(self, timeout: float | None = None) -> object:
                if timeout is not None:
                    self.set_result("answer")
                    raise TimeoutError
                return super().result()

        assert module._result(LastMoment(), 0.1) == "answer"

    def test_the_portal_works_on_after_a_timeout(self) -> None:
        with Portal(timeout=30) as portal:
            view = portal.view(Well())
            with pytest.raises(Unavailable):
                portal.wait(Well().hang(), timeout=0.01)
            assert view.draw() == 2


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
