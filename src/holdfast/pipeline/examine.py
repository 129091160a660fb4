"""One accepted batch, looked at closely: is everything there that should be, and which hours does it matter to?

This is what a task of the reconciler does. It reads the manifest, the bytes and what is derived from them, writes the
references that are missing, and says what it found. Whatever is wrong with one batch is a row about that batch; only a
store that does not answer fails the task.

Requests for a batch that is found by its reference: three GET (reference, manifest, bytes) and two HEAD; for one that
is found by its manifest: two GET, two HEAD, and a PUT and a GET to make sure of its reference by time; besides, one PUT
for each other reference that is missing.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.objects.store import Object, Store, Version
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.accept.reconcile import Finding, Problem, Share, shares
from holdfast.telemetry.discover import Stray, resolve
from holdfast.telemetry.frame import Batch, FrameInvalid, Limits, decode
from holdfast.telemetry.identity import BatchIdentity

AT_ONCE = 16
"""Batches under way in a task."""
DECODERS = 2
"""Frames that are unpacked at a time: each may take a hundred times its size."""


@dataclass(slots=True)
class Row:
    """What is known of one batch, or of one key that is none."""

    key: str
    """What was looked at."""
    manifest: AcceptedManifest | None = None
    """None if there is nothing to count."""
    shares: list[Share] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    expired: bool = False
    """Its bytes were let go: it is listed and counted wherever it matters, and there is nothing more to look at."""
    reference: str | None = None
    """The key of its reference by time; None if the manifest cannot be read."""
    written_ns: int = 0
    """When the manifest was written, by the store's clock."""
    referred: bool = False
    """Its reference by time was missing, or did not count."""
    waiting: bool = False
    """A reference that leads to no accepted batch, yet or for ever."""
    wrote: int = 0
    """References that were missing."""
    read_bytes: int = 0

    @property
    def identity(self) -> BatchIdentity | None:
        return None if self.manifest is None else self.manifest.identity

    def document(self) -> Document:
        return {
            "key": self.key,
            "manifest": None if self.manifest is None else self.manifest.document(),
            "shares": [[each.hour, each.records, each.first_ns, each.last_ns] for each in self.shares],
            "problems": [each.document() for each in self.problems],
            "expired": self.expired,
            "reference": self.reference,
            "written_ns": self.written_ns,
            "referred": self.referred,
            "waiting": self.waiting,
            "wrote": self.wrote,
            "read_bytes": self.read_bytes,
        }

    @classmethod
    def of(cls, document: Document) -> "Row":
        manifest = document["manifest"]
        return cls(
            document["key"],
            None if manifest is None else _manifest(manifest, document["key"]),
            [Share(*each) for each in document["shares"]],
            [Problem.of(each) for each in document["problems"]],
            document["expired"],
            document["reference"],
            document["written_ns"],
            document["referred"],
            document["waiting"],
            document["wrote"],
            document["read_bytes"],
        )


def payload_of(keys: Iterable[str], limits: Limits) -> bytes:
    bounds = [limits.frame_bytes, limits.payload_bytes, limits.records, limits.elements]
    return json.dumps({"keys": list(keys), "limits": bounds}).encode()


async def examine_task(store: Store, payload: bytes) -> list[Document]:
    """A task: every key in the payload."""
    asked = json.loads(payload)
    examiner = Examiner(store, Limits(*asked["limits"]))
    rows = await map_bounded(asked["keys"], examiner.look, limit=AT_ONCE)
    return [row.document() for row in rows]


class Examiner:
    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._decoders = asyncio.Semaphore(DECODERS)

    async def look(self, key: str) -> Row:
        row = Row(key)
        try:
            if key.startswith(layout.ACCEPTED_BY_TIME):
                await self._by_reference(row)
            elif key.startswith(layout.CONFLICTS):
                await self._conflict(row)
            else:
                await self._by_manifest(row, key)
        except _Expired as found:
            row.manifest, row.shares, row.expired = found.manifest, [], True
        except _Found as found:
            row.manifest, row.shares = None, []
            row.problems.append(found.problem)
        return row

    async def _by_reference(self, row: Row) -> None:
        try:
            found = await resolve(self._store, row.key)
        except NotFound:
            found = Stray.NO_MANIFEST
        except (Corrupt, Incompatible) as error:
            key = await self._named(row.key)
            raise _Found(_finding(error, Finding.CORRUPT_MANIFEST), key, str(error)) from error
        if isinstance(found, Stray):
            row.waiting = True
            return
        await self._look(row, found.manifest, found.written_ns)

    async def _named(self, key: str) -> str:
        """The manifest that cannot be read, or the reference that leads to none."""
        try:
            return references.named_manifest(await self._store.get(key))
        except (NotFound, Corrupt, Incompatible):
            return key

    async def _by_manifest(self, row: Row, key: str) -> None:
        identity = layout.identity_in(key)
        if identity is None or key != layout.accepted_key(identity):
            raise _Found(Finding.FOREIGN_OBJECT, key, "its name is not that of a manifest")
        found = await self._get(key, Finding.CORRUPT_MANIFEST)
        try:
            manifest = AcceptedManifest.read(found)
        except (Corrupt, Incompatible) as error:
            raise _Found(_finding(error, Finding.CORRUPT_MANIFEST), key, str(error)) from error
        await self._look(row, manifest, found.modified_ns)
        await self._refer_by_time(row, manifest, found.modified_ns)

    async def _look(self, row: Row, manifest: AcceptedManifest, accepted_ns: int) -> None:
        row.written_ns = accepted_ns
        with suppress(ValueError, OverflowError):  # its time of acceptance is invalid
            row.reference = references.by_time(manifest).key
        batch = await self._batch(row, manifest, accepted_ns)
        row.manifest = manifest
        row.shares, future = shares(batch, manifest.limits)
        if future:
            told = f"{future} of its {len(batch)} records are dated outside of the times that it may have"
            row.problems.append(Problem(Finding.FUTURE_CLOCK, manifest.key, told))
        await self._refer(row, references.of_bytes(manifest))

    async def _batch(self, row: Row, manifest: AcceptedManifest, accepted_ns: int) -> Batch:
        """``accepted_ns`` is when the manifest came, by the store's clock. Bytes come before it: those that came after
        were sent again, which tells whether they had been let go.
        """
        key = manifest.key
        try:
            stored = await self._store.get(manifest.raw_blob_key)
            body = stored.body
            if stored.modified_ns > accepted_ns and await find_expired(self._store, manifest.identity) is not None:
                raise _Expired(manifest)
        except NotFound:
            if await find_expired(self._store, manifest.identity) is not None:
                raise _Expired(manifest) from None
            told = f"its bytes are not at {manifest.raw_blob_key}"
            raise _Found(Finding.MISSING_BLOB, key, told) from None
        except Invalid as error:
            raise _Found(Finding.CORRUPT_MANIFEST, key, str(error)) from error
        row.read_bytes += len(body)
        async with self._decoders:
            return await blocking(self._decode, manifest, body)

    def _decode(self, manifest: AcceptedManifest, body: bytes) -> Batch:
        digest = hashlib.sha256(body).hexdigest()
        if digest != manifest.frame_sha256:
            told = f"the bytes at {manifest.raw_blob_key} have the hash {digest}, and {manifest.frame_sha256} is wanted"
            raise _Found(Finding.CORRUPT_BLOB, manifest.key, told)
        try:
            batch = decode(body, self._limits)
        except FrameInvalid as error:
            raise _Found(Finding.UNREADABLE_FRAME, manifest.key, f"{manifest.raw_blob_key}: {error}") from error
        own, named = batch.identity, manifest.identity
        if (own.agent_id, own.boot_id, own.seq_start, own.seq_end) != (
            named.agent_id,
            named.boot_id,
            named.seq_start,
            named.seq_end,
        ):
            raise _Found(Finding.CORRUPT_MANIFEST, manifest.key, f"its bytes are those of batch {own}")
        return batch

    async def _conflict(self, row: Row) -> None:
        found = await self._get(row.key, Finding.CORRUPT_MANIFEST)
        try:
            conflict = ConflictManifest.read(found)
        except (Corrupt, Incompatible) as error:
            raise _Found(_finding(error, Finding.CORRUPT_MANIFEST), row.key, str(error)) from error
        await self._refer(row, [references.of_conflict(conflict)])

    async def _refer_by_time(self, row: Row, manifest: AcceptedManifest, manifest_ns: int) -> None:
        try:
            row.referred = await references.refer(self._store, manifest, manifest_ns)
            row.wrote += row.referred
        except (ValueError, OverflowError) as error:
            told = f"its time of acceptance is invalid ({error})"
            row.problems.append(Problem(Finding.FUTURE_CLOCK, manifest.key, told))

    async def _refer(self, row: Row, wanted: Iterable[references.Reference]) -> None:
        """Write the references that are not there."""
        for reference in wanted:
            try:
                await self._store.head(reference.key)
            except NotFound:
                await references.write(self._store, reference)
                row.wrote += 1

    async def _get(self, key: str, otherwise: Finding) -> Object:
        try:
            return await self._store.get(key)
        except NotFound as error:
            raise _Found(otherwise, key, str(error)) from error


class _Expired(Exception):
    """The bytes of this batch were let go. Its numbers stay taken, so others must know of it."""

    def __init__(self, manifest: AcceptedManifest) -> None:
        super().__init__(manifest.key)
        self.manifest = manifest


class _Found(Exception):
    """Something is wrong with this batch, and the others go on."""

    def __init__(self, finding: Finding, key: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(finding, key, message)


def _finding(error: Exception, otherwise: Finding) -> Finding:
    return Finding.UNKNOWN_SCHEMA if isinstance(error, Incompatible) else otherwise


def _manifest(document: dict[str, Any], key: str) -> AcceptedManifest:
    identity = BatchIdentity(document["agent_id"], document["boot_id"], document["seq_start"], document["seq_end"])
    try:
        return AcceptedManifest.read(Object(layout.accepted_key(identity), codec.encode(document), 0, Version("")))
    except HoldfastError as error:
        raise Corrupt(f"{key}: a task's row about it cannot be read ({error})") from error
