"""Which batches have records in an hour: rows of ``batches-by-hour``, derived by the reconciler.

A **listing** is one immutable object, in Parquet; an hour has several, and a batch may be in more than one of them.
Listings are never deleted: a later LIST of an hour finds at least what every earlier one has found.

Errors: ``Corrupt`` for a listing that cannot be read.
"""

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt
from holdfast.objects.store import CREATE, Store
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import Share
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Input

READS = 16

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
    """Its records in this hour; 0 for a batch that is listed only because it shares numbers with one that has some."""
    first_ns: int | None
    last_ns: int | None

    @classmethod
    def of(cls, manifest: AcceptedManifest, share: Share | None) -> "Listed":
        identity, blob = manifest.identity, (manifest.frame_sha256, manifest.raw_blob_key, manifest.frame_bytes)
        place = (identity.manifest_id, identity.agent_id, identity.boot_id, identity.seq_start, identity.seq_end)
        own = (0, None, None) if share is None else (share.records, share.first_ns, share.last_ns)
        return cls(*place, *blob, manifest.accepted_at_unix_ns, *own)

    @property
    def identity(self) -> BatchIdentity:
        return BatchIdentity(self.agent, self.boot, self.seq_start, self.seq_end)

    @property
    def input(self) -> Input:
        return Input(self.manifest_id, self.frame_sha256)


def listing_id(hour: int, rows: Sequence[Listed]) -> str:
    """The id of a listing, which follows from its content."""
    text = "\n".join(f"{row.manifest_id} {row.frame_sha256} {row.records}" for row in sorted(rows))
    return hashlib.sha256(f"{layout.hour_path(hour)}\n{text}".encode()).hexdigest()


def encode(rows: Sequence[Listed]) -> bytes:
    ordered = sorted(rows)
    columns = [pa.array([getattr(row, name) for row in ordered], SCHEMA.field(name).type) for name in SCHEMA.names]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def decode(body: bytes, key: str) -> list[Listed]:
    return [Listed(**row) for row in table(body, key).to_pylist()]


def table(body: bytes, key: str) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(body), columns=SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        raise Corrupt(f"{key}: not a listing of batches ({error})") from error


async def write(store: Store, hour: int, rows: Sequence[Listed]) -> str:
    """Create the listing of these rows; returns its id. An existing one has the same rows."""
    ident = listing_id(hour, rows)
    await store.put(layout.batches_key(hour, ident), encode(rows), CREATE)
    return ident


async def listings(store: Store, hour: int) -> list[str]:
    """Keys of all listings of an hour. Foreign objects are left out."""
    return [key async for key in store.keys(layout.batches_folder(hour)) if layout.listing_in(key) is not None]


def ids(keys: Iterable[str]) -> list[str]:
    """The ids of listings, as generations name them."""
    return [ident for key in keys if (ident := layout.listing_in(key)) is not None]


async def read(store: Store, keys: Iterable[str]) -> list[Listed]:
    """The batches that these listings name, each once, in order."""

    async def one(key: str) -> list[Listed]:
        return decode((await store.get(key)).body, key)

    return union(await map_bounded(keys, one, limit=READS))


def union(parts: Iterable[Iterable[Listed]]) -> list[Listed]:
    """Each batch once, in order; of two rows the one with more records counts."""
    found: dict[str, Listed] = {}
    for rows in parts:
        for row in rows:
            other = found.get(row.manifest_id)
            if other is None or other.records < row.records:
                found[row.manifest_id] = row
    return sorted(found.values())


async def of_hour(store: Store, hour: int) -> list[Listed]:
    """Every batch that matters to an hour."""
    return await read(store, await listings(store, hour))
