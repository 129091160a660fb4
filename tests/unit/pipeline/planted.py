"""Faults to plant into a healthy store, each with what an audit must say of it: the rules, and the keys.

A fault is a function that spoils the store as a failure, a person or another program would, and returns exactly what
should be reported: nothing more, nothing else.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from holdfast.base import codec
from holdfast.objects.store import CREATE, OVERWRITE, Store
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept.manifest import AcceptedManifest

Expected = set[tuple[str, str]]
Plant = Callable[[Store], Awaitable[Expected]]


@dataclass(frozen=True)
class Fault:
    name: str
    plant: Plant
    deep: bool = False
    """Only an audit that reads all bytes must find it."""


FAULTS: list[Fault] = []


def fault(*, deep: bool = False) -> Callable[[Plant], Plant]:
    def enter(plant: Plant) -> Plant:
        FAULTS.append(Fault(plant.__name__, plant, deep))
        return plant

    return enter


async def first(store: Store, prefix: str, suffix: str = "") -> str:
    return min([key async for key in store.keys(prefix) if key.endswith(suffix)])


async def a_manifest(store: Store) -> AcceptedManifest:
    return AcceptedManifest.read(await store.get(await first(store, ingest.ACCEPTED)))


async def rewrite(store: Store, key: str, **fields: object) -> None:
    document = codec.decode((await store.get(key)).body, key=key)
    await store.put(key, codec.encode({**document, **fields}), OVERWRITE)


async def cut(store: Store, key: str) -> None:
    body = (await store.get(key)).body
    await store.put(key, body[: len(body) // 2], OVERWRITE)


# --- accepted batches ---


@fault()
async def missing_blob(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await store.delete(manifest.raw_blob_key)
    return {("missing_blob", manifest.key)}


@fault(deep=True)
async def flipped_bit(store: Store) -> Expected:
    manifest = await a_manifest(store)
    body = bytearray((await store.get(manifest.raw_blob_key)).body)
    body[len(body) // 2] ^= 1
    await store.put(manifest.raw_blob_key, bytes(body), OVERWRITE)
    return {("corrupt_blob", manifest.key)}


@fault()
async def truncated_blob(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await cut(store, manifest.raw_blob_key)
    return {("wrong_length", manifest.key)}


@fault()
async def truncated_manifest(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await cut(store, manifest.key)
    return {("corrupt_manifest", manifest.key)}


@fault()
async def manifest_of_another_batch(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await rewrite(store, manifest.key, seq_end=manifest.identity.seq_end + 1)
    return {("corrupt_manifest", manifest.key)}


@fault()
async def manifest_of_another_schema(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await rewrite(store, manifest.key, schema="lightmetrics.accepted_batch.v9")
    return {("unknown_schema", manifest.key)}


@fault(deep=True)
async def manifest_that_counts_wrongly(store: Store) -> Expected:
    manifest = await a_manifest(store)
    counts = {"samples": sum(manifest.records.values()) + 1}
    await rewrite(store, manifest.key, records=counts)
    by_time = ingest.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity)
    document = codec.decode((await store.get(manifest.key)).body, key="")
    await rewrite(store, by_time, accepted_manifest=document)
    return {("wrong_records", manifest.key)}


@fault()
async def no_reference_by_blob(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await store.delete(ingest.accepted_by_blob_key(manifest.frame_sha256, manifest.identity))
    return {("missing_by_blob", manifest.key)}


@fault()
async def no_reference_by_time(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await store.delete(ingest.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity))
    return {("missing_by_time", manifest.key)}


@fault()
async def no_blob_reference_by_time(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await store.delete(ingest.blob_by_time_key(manifest.accepted_at_unix_ns, manifest.frame_sha256))
    return {("missing_blob_by_time", manifest.key)}


@fault()
async def lengthened_reference(store: Store) -> Expected:
    manifest = await a_manifest(store)
    key = ingest.accepted_by_blob_key(manifest.frame_sha256, manifest.identity)
    await rewrite(store, key, raw_blob_key=ingest.blob_key("0" * 64) + "~")
    return {("wrong_reference", key)}


@fault(deep=True)
async def lying_reference(store: Store) -> Expected:
    """It is as long as the one that follows from the manifest: a listing does not show that."""
    manifest = await a_manifest(store)
    key = ingest.accepted_by_blob_key(manifest.frame_sha256, manifest.identity)
    await rewrite(store, key, raw_blob_key=ingest.blob_key("0" * 64))
    return {("wrong_reference", key)}


@fault()
async def reference_by_time_that_names_nothing(store: Store) -> Expected:
    manifest = await a_manifest(store)
    ghost = replace(manifest.identity, seq_start=10**9, seq_end=10**9 + 1)
    key = ingest.accepted_by_time_key(manifest.accepted_at_unix_ns, ghost)
    await store.put(key, codec.encode({"schema": "holdfast.accepted_by_time.v1"}), CREATE)
    return {("corrupt_by_time", key)}


@fault()
async def reference_by_blob_to_nothing(store: Store) -> Expected:
    manifest = await a_manifest(store)
    ghost = replace(manifest.identity, seq_start=10**9, seq_end=10**9 + 1)
    key = ingest.accepted_by_blob_key(manifest.frame_sha256, ghost)
    await store.put(key, b"{}", CREATE)
    return {("dangling_by_blob", key)}


@fault()
async def blob_reference_by_time_to_nothing(store: Store) -> Expected:
    manifest = await a_manifest(store)
    key = ingest.blob_by_time_key(manifest.accepted_at_unix_ns, "0" * 64)
    await store.put(key, b"{}", CREATE)
    return {("dangling_blob_by_time", key)}


@fault()
async def foreign_objects(store: Store) -> Expected:
    keys = [
        f"{prefix}stray.txt" for prefix in (ingest.ACCEPTED, ingest.BLOBS, ingest.ACCEPTED_BY_TIME, ingest.CONFLICTS)
    ]
    for key in keys:
        await store.put(key, b"hello", CREATE)
    return {("foreign_object", key) for key in keys}


@fault()
async def bytes_that_are_no_frame(store: Store) -> Expected:
    key = ingest.blob_key(hashlib.sha256(b"hello").hexdigest())
    await store.put(key, b"hello", CREATE)
    return {("foreign_blob", key)}


@fault()
async def conflict_without_bytes(store: Store) -> Expected:
    key = await first(store, ingest.CONFLICTS)
    await store.delete(ingest.blob_key(key.rpartition("/")[2].removesuffix(".json")))
    return {("missing_evidence", key)}


@fault()
async def conflict_with_nothing(store: Store) -> Expected:
    key = await first(store, ingest.CONFLICTS)
    await rewrite(store, key, accepted_frame_sha256="0" * 64)
    return {("conflict_without_accepted", key)}


@fault()
async def truncated_conflict(store: Store) -> Expected:
    key = await first(store, ingest.CONFLICTS)
    await cut(store, key)
    return {("corrupt_conflict", key)}


@fault()
async def conflict_without_reference(store: Store) -> Expected:
    key = await first(store, ingest.CONFLICTS)
    identity, sha256 = ingest.identity_in(key), key.rpartition("/")[2].removesuffix(".json")
    assert identity is not None
    await store.delete(ingest.conflict_by_blob_key(sha256, identity))
    return {("missing_conflict_by_blob", key)}


@fault()
async def reference_to_no_conflict(store: Store) -> Expected:
    manifest = await a_manifest(store)
    key = ingest.conflict_by_blob_key(manifest.frame_sha256, manifest.identity)
    await store.put(key, b"{}", CREATE)
    return {("dangling_conflict_by_blob", key)}
