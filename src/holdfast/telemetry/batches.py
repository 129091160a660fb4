"""Accepted batches, read from the store: their bytes are checked against the hash in the manifest and decoded.

A batch that cannot be read is logged and recorded in ``unreadable``, one whose bytes retention has removed in
``expired``; the caller continues with the others. A store that does not answer raises.
"""

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.frame import Batch, Limits, Samples, decode
from holdfast.telemetry.identity import BatchIdentity

READS = 32
"""Batches that are read at a time."""
DECODERS = 2
"""Frames that are decoded at a time: each may take a hundred times its size."""
BYTES_PER_BATCH = 8_192
"""Upper estimate of the memory of a batch's Python and array objects, beside columns and texts."""
_BYTES_PER_TEXT = 60
_BYTES_PER_SERIES = 5 * 8

_log = logger("batches")


class StoredBatch(Protocol):
    """What names the bytes of an accepted batch, such as a row of a listing."""

    @property
    def identity(self) -> BatchIdentity: ...

    @property
    def blob_key(self) -> str: ...

    @property
    def frame_sha256(self) -> str: ...


@dataclass(slots=True)
class BatchCache:
    """Recently decoded batches, limited in bytes; the oldest are dropped first."""

    max_bytes: int = 64 << 20
    _batches: dict[str, Batch] = field(default_factory=dict)
    _bytes: int = 0

    def get(self, manifest_id: str) -> Batch | None:
        return self._batches.get(manifest_id)

    def put(self, manifest_id: str, batch: Batch) -> None:
        size = memory_of(batch)
        if manifest_id in self._batches or size > self.max_bytes:
            return
        self._batches[manifest_id] = batch
        self._bytes += size
        while self._bytes > self.max_bytes:
            self._bytes -= memory_of(self._batches.pop(next(iter(self._batches))))


@dataclass(slots=True)
class BatchReader:
    store: Store
    limits: Limits
    cache: BatchCache | None = None
    unreadable: set[str] = field(default_factory=set)
    """Manifest ids; for a manifest or reference that cannot be read, its key."""
    expired: set[str] = field(default_factory=set)
    """Manifest ids."""
    read_bytes: int = 0
    _decoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODERS))

    async def load(self, identity: BatchIdentity, blob_key: str, sha256: str) -> Batch | None:
        """None if the batch cannot be read or has expired."""
        manifest_id = identity.manifest_id
        cached = None if self.cache is None else self.cache.get(manifest_id)
        if cached is not None:
            return cached
        try:
            body = (await self.store.get(blob_key)).body
            self.read_bytes += len(body)
            async with self._decoders:
                batch = await blocking(decode_checked, body, sha256, self.limits)
        except NotFound as error:
            if await find_expired(self.store, identity) is not None:
                self.expired.add(manifest_id)
            else:
                self.failed(manifest_id, blob_key, error)
            return None
        except (Corrupt, Invalid) as error:
            self.failed(manifest_id, blob_key, error)
            return None
        if self.cache is not None:
            self.cache.put(manifest_id, batch)
        return batch

    async def load_row(self, row: StoredBatch) -> Batch | None:
        return await self.load(row.identity, row.blob_key, row.frame_sha256)

    async def load_rows(self, rows: Iterable[StoredBatch]) -> list[Batch]:
        """Those of these batches that can be read."""
        found = await map_bounded(rows, self.load_row, limit=READS)
        return [each for each in found if each is not None]

    def failed(self, name: str, key: str, error: HoldfastError) -> None:
        """Record a batch that cannot be read under this name."""
        _log.warning("%s: a batch cannot be read and is left out: %s", key, error)
        self.unreadable.add(name)


def decode_checked(body: bytes, sha256: str, limits: Limits) -> Batch:
    """``Corrupt`` for bytes with another hash, ``FrameInvalid`` for bytes that are not a valid frame."""
    found = hashlib.sha256(body).hexdigest()
    if found != sha256:
        raise Corrupt(f"the bytes have the hash {found}, but {sha256} was accepted")
    return decode(body, limits)


def memory_of(batch: Batch) -> int:
    """Estimated bytes in memory: exact for the columns, an upper limit for the objects around them."""
    histograms, logs, alerts = batch.histograms, batch.logs, batch.alerts
    size = BYTES_PER_BATCH + batch.text_bytes + _BYTES_PER_TEXT * len(batch.texts) + 16 * len(batch.label_sets.names)
    size += _memory_of_samples(batch.samples)
    if len(histograms):
        size += _memory_of_samples(histograms.samples) + 8 * len(histograms)
        size += sum(table.nbytes for table in histograms.counts)
    if len(logs):
        size += 4 * 8 * len(logs) + int(logs.message.nbytes)
    if len(alerts):
        size += 7 * 8 * len(alerts) + int(alerts.message.nbytes)
    return size


def _memory_of_samples(samples: Samples) -> int:
    columns = 3 if samples.exact is None else 4
    return columns * 8 * len(samples) + _BYTES_PER_SERIES * len(samples.series)
