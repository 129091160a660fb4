"""A driver that must wait for another says so, and for whom; one that was killed blocks no other."""

import io

import pytest

from holdfast import pipeline
from holdfast.base.errors import Conflict
from holdfast.cli.output import Output
from holdfast.cli.progress import Watch
from holdfast.objects.layer import Layer
from holdfast.objects.lease import Lease
from holdfast.objects.open import open_store
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.pipeline import layout
from holdfast.runs import layout as runs

LONG_MS = 3_600_000


async def test_a_driver_that_waits_says_so() -> None:
    async with open_store("memory:") as store:
        lease = Lease(store, layout.lease_key("reconcile"), "driver-1", store.ambient, ttl_ms=LONG_MS)
        answer = io.StringIO()
        watch = Watch(Output(as_json=False, stderr=answer))
        async with lease.hold():
            with pytest.raises(Conflict, match="another process runs it"):
                await pipeline.run(store, ["reconcile"], wait_ms=1, say=watch.say)
            said = "another process runs this job (driver-1, for up to 3600 s more); waiting up to 0 s"
            assert answer.getvalue() == f"reconcile: {said}; --takeover does not wait\n"
            with pytest.raises(Conflict):  # without waiting there is nothing but the error
                await pipeline.run(store, ["reconcile"], wait_ms=0, say=lambda *_: pytest.fail("said"))
        answer.truncate(0)
        assert await pipeline.run(store, ["reconcile"], say=watch.say) == []  # nothing was accepted
        assert "another process" not in answer.getvalue()


class Killed(BaseException):
    pass


class DiesBeforeTheFirstEntry(Layer):
    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.startswith(runs.ROOT):
            raise Killed
        return await super().put(key, body, mode)


async def test_a_driver_killed_before_the_first_entry_of_its_run_blocks_no_other() -> None:
    async with open_store("memory:") as store:
        with pytest.raises(Killed):
            await pipeline.run(DiesBeforeTheFirstEntry(store), ["reconcile"], request={"full": True})
        assert [key async for key in store.keys("runs-index/")] != []
        [ran] = await pipeline.run(store, ["reconcile"], request={"full": True}, takeover=True)
        assert (ran.status, ran.resumed) == ("success", False)
        assert [summary.run_id for summary, _ in await pipeline.history(store)] == [ran.run_id]
