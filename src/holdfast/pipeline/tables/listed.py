"""Batches as the hours that they have records in list them (``batches-by-hour``), hour by hour.

A task lists a part of an hour itself, so no list of keys travels. A listing that cannot be read gives one row with an
``error`` and no batch: its hour stays as it is.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.base.aio import blocking, stream_bounded
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.pipeline.tables.table import Wanted
from holdfast.telemetry.rollup import layout, listing
from holdfast.telemetry.rollup.manifest import slot_of

LISTED = pa.schema(
    [
        ("hour", pa.int64()),
        ("listing", pa.string()),
        ("error", pa.string()),
        ("slot", pa.int64()),
        *((field.name, field.type) for field in listing.SCHEMA),
    ]
)
READS = 8
FEW_HOURS = 8
DIGITS = "0123456789abcdef"


@dataclass(frozen=True)
class ListedTable:
    hours: tuple[int, ...]
    name: str = "listed"
    schema: pa.Schema = LISTED

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[int, str]]:
        """Hours, and the first digit of the listings of a part; of many hours each is one part."""
        digits = DIGITS if len(self.hours) <= FEW_HOURS else ("",)
        return [(hour, digit) for hour in self.hours for digit in digits]

    async def read(self, store: Store, part: tuple[int, str], wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        hour, digit = part
        first = f"{layout.batches_folder(hour)}{digit}"
        keys: list[str] = []
        async for key in store.keys(layout.batches_folder(hour), after=first if digit else None):
            if not key.startswith(first):
                break
            keys.append(key)

        async def one(key: str) -> pa.Table:
            body = (await store.get(key)).body
            return await blocking(_rows, hour, key, body)

        async for rows in stream_bounded([key for key in keys if listing.is_listing(key, hour)], one, limit=READS):
            for batch in rows.select(list(wanted.columns)).to_batches():
                yield batch


def _rows(hour: int, key: str, body: bytes) -> pa.Table:
    ident = listing.id_in(key)
    try:
        rows = listing.table(body, key)
    except Corrupt as error:
        failed = {"hour": hour, "listing": ident, "error": str(error)}
        return pa.Table.from_pylist([failed], LISTED)
    encoded = rows.column("agent").combine_chunks().dictionary_encode()
    slots = np.array([slot_of(agent) for agent in encoded.dictionary.to_pylist()], np.int64)
    own = {
        "hour": pa.array(np.full(rows.num_rows, hour)),
        "listing": pa.repeat(pa.scalar(ident), rows.num_rows),
        "error": pa.repeat(pa.scalar(""), rows.num_rows),
        "slot": pa.array(slots[encoded.indices.to_numpy()] if rows.num_rows else slots),
    }
    return pa.table({**own, **{name: rows.column(name) for name in rows.column_names}}, schema=LISTED)
