"""Rows of accepted batches that no store holds, as a data source, to see what relational steps cost by themselves."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.errors import check
from holdfast.objects.store import Store
from holdfast.pipeline import Engine, layout
from holdfast.pipeline.engine import unwatched
from holdfast.pipeline.engine.relations import relations
from holdfast.pipeline.jobs.reconcile import BY_HOUR, COUNTS, TABLES, define
from holdfast.pipeline.jobs.reconcile_kernels import LOOKED, WriteListings
from holdfast.pipeline.tables.table import Wanted

PART = 20_000
PER_AGENT = 200
HOUR = 490_000
HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True)
class LookedBatches:
    """So many verified batches of one hour, of agents that sent 200 each."""

    batches: int
    name: str = "looked"
    schema: pa.Schema = LOOKED

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[int, int]]:
        return [(first, min(first + PART, self.batches)) for first in range(0, self.batches, PART)]

    async def read(self, store: Store, part: tuple[int, int], wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        numbers = pa.array(range(*part), pa.int64())
        agents = [f"agent-{number // PER_AGENT:06d}" for number in range(*part)]
        digits = pc.utf8_lpad(pc.cast(numbers, pa.string()), 64, "0")
        inside = pa.array([number % PER_AGENT for number in range(*part)], pa.int64())
        times = pa.array([HOUR * HOUR_NS + number * 3_000 for number in range(*part)], pa.int64())
        same = {
            "place": 0,
            "boot": "boot",
            "frame_bytes": 400,
            "hour": HOUR,
            "records": 10,
            "waiting": False,
            "expired": False,
            "broken": False,
            "problems": 0,
            "wrote": 0,
            "read_bytes": 400,
        }
        columns = {
            "key": digits,
            "manifest_id": digits,
            "frame_sha256": digits,
            "blob_key": digits,
            "agent": pa.array(agents, pa.string()),
            "shard": pa.array([layout.shard_of(agent) for agent in agents], pa.int64()),
            "seq_start": inside,
            "seq_end": inside,
            "accepted_at_ns": times,
            "first_ns": times,
            "last_ns": times,
        }
        columns |= {
            name: pa.repeat(pa.scalar(value, LOOKED.field(name).type), len(numbers)) for name, value in same.items()
        }
        columns["reference"] = pa.nulls(len(numbers), pa.string())
        yield pa.RecordBatch.from_arrays([columns[name] for name in LOOKED.names], schema=LOOKED)


async def listed(store: Store, engine: Engine, batches: int) -> int:
    """List generated batches of one hour; in how many listings."""
    async with relations(store, engine, f"run-{batches}", lambda step: unwatched) as work:
        for name, schema in TABLES.items():
            work.empty(name, schema)
        await work.scan("looked", LookedBatches(batches))
        define(work)
        (counted,) = await work.rows(COUNTS)
        check(int(counted["batches"]) == batches, "other batches were counted than were generated")
        await work.map("written", "SELECT * FROM unlisted", WriteListings(), BY_HOUR)
        found = await work.rows("SELECT key FROM written")
        await work.remove()
    return len(found)
