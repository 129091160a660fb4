"""A driver that must wait for another says so, and for whom."""

import io

import pytest

from holdfast import pipeline
from holdfast.base.errors import Conflict
from holdfast.cli.output import Output
from holdfast.cli.progress import Watch
from holdfast.objects.lease import Lease
from holdfast.objects.open import open_store
from holdfast.pipeline import layout

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
