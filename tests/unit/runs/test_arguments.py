"""Arguments are checked where they are given, and the error names them."""

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import pytest

from holdfast import runs
from holdfast.base.errors import Invalid
from tests.unit.runs.desk import Desk


async def fine(ctx: runs.Context) -> None:
    """A workflow."""


async def without_context() -> None:
    """Not a workflow."""


async def keyword_only(*, ctx: runs.Context) -> None:
    """Not a workflow either."""


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: runs.workflow(version=cast("Any", 1))(fine), 'version=1 is not a string.*version="1"'),
        (lambda: runs.workflow(cast("Any", without_context)), "without_context takes no context"),
        (lambda: runs.workflow(cast("Any", keyword_only)), "keyword_only takes no context"),
        (lambda: runs.workflow(retry=cast("Any", 3))(fine), "retry=3 is not a Retry"),
        (lambda: runs.workflow(name=cast("Any", 3))(fine), "workflow name 3 is a int"),
        (lambda: runs.Retry(attempts=0), "attempts=0 is not an integer of at least 1"),
        (lambda: runs.Retry(attempts=cast("Any", "3")), "attempts='3'"),
        (lambda: runs.Retry(base_ms=cast("Any", math.nan)), "base_ms=nan"),
        (lambda: runs.Retry(jitter=2), "jitter=2 is not a number of at least 0 and at most 1"),
        (lambda: runs.Retry(on=cast("Any", OSError)), "not a tuple of exception classes"),
    ],
)
def test_what_a_workflow_is_made_of(make: Callable[[], object], named: str) -> None:
    with pytest.raises(Invalid, match=f"(?s){named}"):
        make()


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda ctx: ctx.step("s", int, timeout="5"), "timeout='5' is not a number"),
        (lambda ctx: ctx.step("s", int, timeout=math.nan), "timeout=nan"),
        (lambda ctx: ctx.step("s", int, retry=3), "retry=3 is not a Retry"),
        (lambda ctx: ctx.parallel("g", [(int,)], timeout="5"), "timeout='5'"),
        (lambda ctx: ctx.parallel("g", [], limit=0), "limit=0"),
        (lambda ctx: ctx.sleep(seconds="5"), "seconds='5'"),
        (lambda ctx: ctx.sleep(seconds=math.nan), "seconds=nan is not a finite number$"),
        (lambda ctx: ctx.sleep(until="tomorrow"), "until='tomorrow' is not a datetime"),
        (lambda ctx: ctx.sleep(until=datetime(2030, 1, 1)), "time zone"),  # noqa: DTZ001  # the mistake
        (lambda ctx: ctx.run(fine), "not a workflow"),
        (lambda ctx: ctx.step("s", 5), "a int was given where a step's function is expected"),
        (lambda ctx: ctx.step(5, int), "step name 5 is a int"),
        (lambda ctx: ctx.step("a#2", int), "step name"),
        (lambda ctx: ctx.step("x" * 201, int), "step name"),
        (lambda ctx: ctx.suspend(5), "event name 5 is a int"),
        (lambda ctx: ctx.parallel("p", {"a": (int,), "b": str}), "call 'b' of group 'p' is not a function with its"),
        (lambda ctx: ctx.parallel("p", [()]), "call '0' of group 'p'"),
        (lambda ctx: ctx.sleep(days=10**9), "ends at no time"),
    ],
)
async def test_what_a_context_is_asked(ask: Callable[[Any], Any], named: str) -> None:
    desk = Desk()

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        await ask(ctx)

    with pytest.raises(Invalid, match=named):
        await work.start(desk.store(), run_id="r")
    assert len(desk.journal("r")) == 1, "nothing has run"
    assert (await runs.describe(desk.store(), "r")).status == "open", "a mistake in the code is no outcome"


class Platform:
    """Stands where a ``Holdfast`` is passed by mistake."""

    def __init__(self, store: object) -> None:
        self.store = store


async def test_a_platform_in_place_of_a_store_is_an_error_that_says_what_to_pass() -> None:
    hf = cast("Any", Platform(Desk().store()))
    work = runs.workflow(fine)
    calls = [
        work.start(hf, run_id="r"),
        work.resume(hf, "r", "go"),
        runs.deliver(hf, "r", "go"),
        runs.describe(hf, "r"),
        runs.worker(hf, [work], until_idle=True),
        runs.fork(hf, "r", from_offset=1),
        runs.delete(hf, "r"),
        runs.reindex(hf),
        anext(runs.find(hf)),
        anext(runs.follow(hf, "r")),
    ]
    for call in calls:
        with pytest.raises(Invalid, match=r"hf\.store"):
            await call


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"poll_ms": "1"}, "poll_ms='1'"),
        ({"stale_after_ms": math.nan}, "stale_after_ms=nan"),
    ],
)
async def test_what_a_worker_is_given(options: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        await runs.worker(Desk().store(), [runs.workflow(fine)], **options)
    with pytest.raises(Invalid, match="not a workflow"):
        await runs.worker(Desk().store(), [cast("Any", fine)])


@pytest.mark.parametrize(("given", "named"), [({"tags": 5}, "tags=5"), ({"metadata": [1]}, r"metadata=\[1\]")])
async def test_what_a_run_is_started_with(given: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        await runs.workflow(fine).start(Desk().store(), **given)
