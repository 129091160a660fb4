"""What a run costs once it is over: it is looked through for leftover segments only if it can have left some."""

import json

import pytest

from holdfast import runs
from tests.unit.runs.desk import Crash, Desk


@pytest.mark.parametrize(("steps", "dies", "looks"), [(20, True, 0), (100, False, 0), (100, True, 1), (300, False, 1)])
async def test_only_a_run_that_may_have_left_segments_is_tidied(steps: int, dies: bool, looks: int) -> None:
    """Merging leaves some, from the eighth segment on; and a session that was cut short may have."""
    desk = Desk()
    store = desk.store()

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        for _ in range(steps):
            await ctx.step("one", lambda: "x" * 1024)
        if dies and ctx.session == 1:
            raise Crash

    if dies:
        with pytest.raises(Crash):
            await work.start(desk.store(), run_id="r")
    await work.start(store, run_id="r")
    assert store.usage.requests("list", "runs") == looks
    segments = [key for key in desk.shelf.objects if "/segments/" in key]
    head = json.loads(desk.journal("r")[0])
    assert len(segments) == len(head.get("refs", ())), "nothing is left that the journal does not refer to"
