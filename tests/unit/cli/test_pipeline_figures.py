"""The figures of a service that stands by, because another driver has its turn."""

import asyncio

from holdfast import pipeline
from holdfast.base.errors import Conflict, HoldfastError
from holdfast.cli.pipeline.metrics import Figures
from holdfast.objects.client import Client
from holdfast.objects.lease import Lease
from holdfast.objects.open import open_store
from holdfast.pipeline import layout
from holdfast.pipeline.checkpoint import Checkpoint, Checkpoints

LONG_MS = 3_600_000
LONG_AGO_S = 1_000_000_000


def lag_in(figures: Figures) -> float | None:
    found = [value for each in figures.measures() if "lag" in each.name for _, value in each.samples]
    return found[0] if found else None


async def at(store: Client, ago_s: int) -> None:
    """Where the other driver is."""
    through_ns = store.ambient.clock.wall_ns() - ago_s * 1_000_000_000
    await Checkpoints(store, store.ambient).advance(str(ago_s), Checkpoint(through_ns))


async def test_a_standby_service_shows_how_far_the_other_is() -> None:
    async with open_store("memory:") as store:
        figures = Figures(store, 0.01)
        stop = asyncio.Event()
        lags: list[float | None] = []

        async def ended(ran: list[pipeline.Ran]) -> None:
            raise AssertionError(f"a turn that is another's: {ran}")

        async def failed(error: HoldfastError) -> None:
            assert isinstance(error, Conflict)
            await figures.failed(error)
            lags.append(lag_in(figures))
            if len(lags) == 1:
                await at(store, LONG_AGO_S)
            elif len(lags) == 2:
                await at(store, 0)
            else:
                stop.set()

        async with Lease(store, layout.lease_key("reconcile"), "other", store.ambient, ttl_ms=LONG_MS).hold():
            await pipeline.serve(
                store,
                ["reconcile"],
                every_s=0.01,
                stop=stop,
                engine=pipeline.Inline(),
                options=pipeline.Options(),
                on_round=ended,
                on_error=failed,
            )
        first, second, third = lags
        assert first is None
        assert second is not None
        assert third is not None
        assert second > LONG_AGO_S / 2 > third
        healthy, _ = figures.health()
        assert healthy
