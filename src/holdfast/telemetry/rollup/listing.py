"""Which batches have records in an hour: rows of ``batches-by-hour``, derived by the reconciler.

A **listing** is one immutable object, in Parquet; an hour has several, and a batch may stand in more than one of them.
Listings are never deleted, so whoever lists an hour finds at least what everybody before has found.

A **merged** listing says in one object what several say, and which: its *parts*. It adds nothing that they do not say
and takes nothing away, so whoever has it need not read them, and whoever does not know it reads them. Generations name
parts alone. Of several merged ones the one with the most parts is read, and what is not among these.

Errors: ``Corrupt`` for a listing that cannot be read; of a merged one its parts are read instead.
"""

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt
from holdfast.base.telemetry import logger
from holdfast.objects.store import CREATE, Store
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Input

log = logger("metrics")

AT_ONCE = 16
PARTS = "holdfast.parts"
"""Beside the rows of a merged listing: the ids of what it holds."""

SCHEMA = pa.schema(
    [
        pa.field("manifest_id", pa.string(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("boot", pa.string(), nullable=False),
        pa.field("seq_start", pa.int64(), nullable=False),
        pa.field("seq_end", pa.int64(), nullable=False),
        pa.field("frame_sha256", pa.string(), nullable=False),
        pa.field("blob_key", pa.string(), nullable=False),
        pa.field("frame_bytes", pa.int64(), nullable=False),
        pa.field("accepted_at_ns", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("first_ns", pa.int64(), nullable=True),
        pa.field("last_ns", pa.int64(), nullable=True),
    ]
)


@dataclass(frozen=True, slots=True, order=True)
class Listed:
    """A batch in an hour."""

    manifest_id: str
    agent: str
    boot: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    blob_key: str
    frame_bytes: int
    accepted_at_ns: int
    records: int
    """In this hour; none of a batch that stands here because it can take a number away from one that has some."""
    first_ns: int | None
    last_ns: int | None

    @property
    def input(self) -> Input:
        return Input(self.manifest_id, self.frame_sha256)


def listing_id(hour: int, rows: Sequence[Listed]) -> str:
    """Follows from what the listing says."""
    text = "\n".join(f"{row.manifest_id} {row.frame_sha256} {row.records}" for row in sorted(rows))
    return hashlib.sha256(f"{layout.hour_path(hour)}\n{text}".encode()).hexdigest()


def merged_id(hour: int, parts: Iterable[str]) -> str:
    """Follows from which listings are held."""
    text = "\n".join(sorted(parts))
    return hashlib.sha256(f"merged {layout.hour_path(hour)}\n{text}".encode()).hexdigest()


def encode(rows: Sequence[Listed], parts: Iterable[str] | None = None) -> bytes:
    """The rows as one object; of a merged listing with the ids of its parts."""
    ordered = sorted(rows)
    columns = [pa.array([getattr(row, name) for row in ordered], SCHEMA.field(name).type) for name in SCHEMA.names]
    table = pa.Table.from_arrays(columns, schema=SCHEMA)
    if parts is not None:
        table = table.replace_schema_metadata({PARTS: json.dumps(sorted(parts))})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def decode(body: bytes, key: str) -> list[Listed]:
    return _table(body, key)[0]


def decode_merged(body: bytes, key: str) -> tuple[list[Listed], frozenset[str]]:
    """The rows, and the ids of the listings that say the same."""
    rows, metadata = _table(body, key)
    try:
        parts = json.loads(metadata[PARTS.encode()])
        if not isinstance(parts, list) or not all(isinstance(each, str) for each in parts):
            raise ValueError("its parts are not named by texts")
        return rows, frozenset(parts)
    except (KeyError, ValueError) as error:
        raise Corrupt(f"{key}: no merged listing ({error})", remedy="remove it: its parts say the same") from error


def _table(body: bytes, key: str) -> tuple[list[Listed], dict[bytes, bytes]]:
    try:
        table = pq.read_table(pa.BufferReader(body), columns=SCHEMA.names)
        return [Listed(**row) for row in table.to_pylist()], table.schema.metadata or {}
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        raise Corrupt(f"{key}: no listing of batches ({error})") from error


async def write(store: Store, hour: int, rows: Sequence[Listed]) -> str:
    """Create the listing of these rows; its key. An existing one says the same."""
    key = layout.batches_key(hour, listing_id(hour, rows))
    await store.put(key, encode(rows), CREATE)
    return key


async def merge(store: Store, hour: int) -> int:
    """Have one object say what all listings of the hour say; how many it holds, 0 if nothing was to be done."""
    keys = await listings(store, hour)
    parts = ids(keys)
    if len(parts) < 2:
        return 0
    key = layout.merged_key(hour, len(parts), merged_id(hour, parts))
    if key in keys:
        return 0
    await store.put(key, encode(await read(store, keys), parts), CREATE)
    return len(parts)


async def listings(store: Store, hour: int) -> list[str]:
    """Keys of all listings of an hour, merged ones too. Foreign objects are none."""
    return [key async for key in store.keys(layout.batches_folder(hour)) if is_listing(key, hour)]


def ids(keys: Iterable[str]) -> list[str]:
    """Ids of those that are not merged: what generations name."""
    return [ident for key in keys if (ident := layout.listing_in(key)) is not None]


async def read(store: Store, keys: Iterable[str]) -> list[Listed]:
    """The batches that these listings name, each once, in order; keys may be of several hours. An hour with a merged
    listing costs one GET, and one for each listing that came after it.
    """
    hours: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        hours[key.rpartition("/")[0]].append(key)
    parts = await map_bounded(hours.values(), lambda own: _of_merged(store, own), limit=AT_ONCE)
    rest = [key for _, left in parts for key in left]

    async def one(key: str) -> list[Listed]:
        return decode((await store.get(key)).body, key)

    return union([*(held for held, _ in parts), *await map_bounded(rest, one, limit=AT_ONCE)])


def union(parts: Iterable[Iterable[Listed]]) -> list[Listed]:
    """Each batch once, in order; of two rows the one with more records counts."""
    found: dict[str, Listed] = {}
    for rows in parts:
        for row in rows:
            known = found.get(row.manifest_id)
            if known is None or known.records < row.records:
                found[row.manifest_id] = row
    return sorted(found.values())


async def _of_merged(store: Store, keys: Sequence[str]) -> tuple[list[Listed], list[str]]:
    """Of the listings of an hour: what the largest merged one says, and the keys of what it does not hold."""
    single = [key for key in keys if layout.merged_in(key) is None]
    if len(single) == len(keys):
        return [], single
    _, largest = max((found, key) for key in keys if (found := layout.merged_in(key)) is not None)
    stored = await store.find(largest)
    if stored is None:  # somebody has removed it
        return [], single
    try:
        rows, held = decode_merged(stored.body, largest)
    except Corrupt as error:  # an audit tells of it; its parts say all
        log.warning("%s; its parts are read", error)
        return [], single
    return rows, [key for key in single if layout.listing_in(key) not in held]


async def of_hour(store: Store, hour: int) -> list[Listed]:
    """Every batch that is known to matter to an hour."""
    return await read(store, await listings(store, hour))


def id_in(key: str) -> str:
    """The id of the listing under this key."""
    return key.rpartition("/")[2].removesuffix(".parquet")


def is_listing(key: str, hour: int) -> bool:
    merged = layout.merged_in(key)
    if merged is not None:
        return key == layout.merged_key(hour, *merged)
    name = id_in(key)
    return len(name) == 64 and key == layout.batches_key(hour, name)
