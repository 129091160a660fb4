"""A platform in memory whose batches are accepted now, and questions to it before and after the pipeline ran."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast import pipeline
from holdfast.platform.open import Holdfast, open_platform
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.query.answer import Answer
from tests.unit.pipeline.field import HOUR, START, Field

SPAN: dict[str, Any] = {"since": START, "until": START + HOUR}


class Now(Field):
    """Batches that are accepted now, whatever times their records have."""

    async def accept(self, agent: str, boot: str, records: dict[int, Any], **how: Any) -> AcceptedManifest:
        return await super().accept(agent, boot, records, at_ns=time.time_ns(), **how)


@asynccontextmanager
async def platform() -> AsyncIterator[tuple[Holdfast, Field]]:
    async with open_platform("memory:") as hf:
        yield hf, Now(hf.store)


async def before_and_after(hf: Holdfast) -> AsyncIterator[bool]:
    """The body runs before and after the pipeline has derived everything."""
    yield False
    await pipeline.run(hf.store)
    yield True


async def ask(hf: Holdfast, metric: str, **asked: Any) -> Answer:
    """In one step, over an hour, unless asked otherwise."""
    return await hf.metrics().query(metric, **{**SPAN, "step": "1h", **asked})


async def values(hf: Holdfast, metric: str, **asked: Any) -> list[float]:
    return [value for each in (await ask(hf, metric, **asked)).series for value in each.values]
