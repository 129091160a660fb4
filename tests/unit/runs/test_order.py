"""What a step returns has the same order on its first run and on every replay, because code may depend on it."""

from typing import Any

import pytest

from holdfast import runs
from tests.unit.runs.desk import Crash, Desk


@pytest.mark.parametrize("size", [1, 40_000], ids=["inline", "payload"])
async def test_keys_come_in_one_order(size: int) -> None:
    desk = Desk()
    seen: list[list[str]] = []
    die = True

    def answer() -> dict[str, Any]:
        return {"zebra": "z" * size, "ant": {"two": 2, "one": 1}}

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        found = await ctx.step("ask", answer)
        seen.append([*found, *found["ant"]])
        for name in found:
            await ctx.step(name, lambda: 1)
            if die:
                raise Crash

    with pytest.raises(Crash):
        await work.start(desk.store(), run_id="r")
    die = False
    assert (await work.start(desk.store(), run_id="r")).status == "success"
    assert seen[0] == seen[1]
