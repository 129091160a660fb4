"""The pipeline runs in the middle of a question, at every place where it can: the answer is the same."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.objects.client import Client
from holdfast.objects.layer import Layer
from holdfast.objects.open import open_store
from holdfast.objects.store import Object, Page
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.logs import Logs
from holdfast.telemetry.query.metrics import Metrics
from holdfast.telemetry.records import Counter, Gauge, Log
from tests.unit.pipeline.field import HOUR, SECOND, START
from tests.unit.telemetry.query.desk import Now

SPAN: dict[str, Any] = {"since": START, "until": START + 2 * HOUR}
MOST = 200


class Interrupted(Layer):
    """A store at whose request number ``at`` something else happens first."""

    def __init__(self, inner: Client, at: int, event: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self._left = at
        self._event = event

    @property
    def happened(self) -> bool:
        return self._left < 0

    async def get(self, key: str) -> Object:
        await self._request()
        return await self.inner.get(key)

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        await self._request()
        async for page in self.inner.list(prefix, after=after, delimiter=delimiter):
            yield page

    async def _request(self) -> None:
        self._left -= 1
        if self._left == -1:
            await self._event()


async def filled(store: Client) -> None:
    """Some batches are rolled up; others, late and with the same numbers, are not."""
    field = Now(store)
    await field.accept("a", "0", {n: Counter("c", n, START + n * SECOND) for n in range(4, 9)})
    await field.accept("b", "0", {0: Gauge("g", 1.0, START), 1: Log("one is here", START)})
    await pipeline.run(store)
    await field.accept("a", "0", {n: Counter("c", 50 + n, START + n * SECOND) for n in range(2, 7)})
    await field.accept("b", "0", {7: Gauge("g", 5.0, START + HOUR), 8: Log("two is here", START + SECOND)})


async def asked(store: Any, ambient: Any) -> list[Any]:
    grown = await Metrics(store, ambient, Limits()).query("c", **SPAN, step="10m", aggregate="sum")
    logs = await Logs(store, ambient, Limits()).search("here", **SPAN)
    return [[(each.labels, each.values) for each in grown.series], [row["message"] for row in logs.rows]]


async def contents(store: Client) -> dict[str, bytes]:
    return {key: (await store.get(key)).body async for key in store.keys("")}


@pytest.mark.parametrize("jobs", [(), pytest.param(("reconcile",), marks=pytest.mark.soak)])
async def test_an_answer_does_not_depend_on_when_the_pipeline_runs(jobs: tuple[str, ...]) -> None:
    """It is run once: what it writes and removes happens between two requests of a question."""
    total = 52.0 + 53 + 54 + 55 + 56 + 7 + 8
    expected = [[({"agent": "a"}, [total])], ["two is here", "one is here"]]
    async with open_store("memory:") as store:
        await filled(store)
        before = await contents(store)
        await pipeline.run(store, jobs)
        after = await contents(store)
    for at in range(MOST):
        async with open_store("memory:") as store:
            for key, body in before.items():
                await store.put(key, body)

            async def derive(store: Client = store) -> None:
                await store.delete_many(before.keys() - after.keys())
                for key in sorted(key for key, body in after.items() if before.get(key) != body):
                    await store.put(key, after[key])

            broken = Interrupted(store, at, derive)
            assert await asked(broken, store.ambient) == expected, at
            if not broken.happened:
                assert at > 15
                return
    pytest.fail("questions have more requests than there are places")
