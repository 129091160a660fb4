"""Faults to plant into a healthy store, each with what an audit must say of it: the rules, and the keys.

A fault is a function that spoils the store as a failure, a person or another program would, and returns exactly what
should be reported: nothing more, nothing else. Here are those of accepted batches; garbage is reported, and not wrong.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from holdfast.base import codec
from holdfast.objects.store import CREATE, OVERWRITE, Store
from holdfast.runs import layout as runs
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept import references
from holdfast.telemetry.accept.manifest import AcceptedManifest
from tests.unit.pipeline.healthy import frame

Expected = set[tuple[str, str]]
Plant = Callable[[Store], Awaitable[Expected]]
Spoil = Callable[[Store, str], Awaitable[None]]
Spot = Callable[[Store], Awaitable[tuple[str, str]]]
"""An object to spoil, and the key that is named when it is."""


@dataclass(frozen=True)
class Fault:
    name: str
    plant: Plant
    deep: bool = False
    """Only an audit that reads all bytes must find it."""


FAULTS: list[Fault] = []
REMARKS: list[Fault] = []
"""What is information, and not wrong."""


def fault(*, deep: bool = False) -> Callable[[Plant], Plant]:
    def enter(plant: Plant) -> Plant:
        FAULTS.append(Fault(plant.__name__, plant, deep))
        return plant

    return enter


def spoilt(rule: str, spoil: Spoil, spot: Spot, *, deep: bool = False) -> None:
    """Enter a fault that breaks one rule by spoiling one object."""

    async def plant(store: Store) -> Expected:
        touched, named = await spot(store)
        await spoil(store, touched)
        return {(rule, named)}

    FAULTS.append(Fault(f"{rule} {spoil.__name__}", plant, deep))


def remark(plant: Plant) -> Plant:
    REMARKS.append(Fault(plant.__name__, plant))
    return plant


async def first(store: Store, prefix: str, suffix: str = "") -> str:
    return min([key async for key in store.keys(prefix) if key.endswith(suffix)])


async def gone(store: Store, key: str) -> None:
    await store.delete(key)


async def cut(store: Store, key: str) -> None:
    body = (await store.get(key)).body
    await store.put(key, body[: len(body) // 2], OVERWRITE)


async def flipped(store: Store, key: str) -> None:
    body = bytearray((await store.get(key)).body)
    body[len(body) // 2] ^= 1
    await store.put(key, bytes(body), OVERWRITE)


async def stray(store: Store, key: str) -> None:
    await store.put(key, b"{}", CREATE)


async def rewrite(store: Store, key: str, **fields: object) -> None:
    document = codec.decode((await store.get(key)).body, key=key)
    await store.put(key, codec.encode({**document, **fields}), OVERWRITE)


# --- accepted batches ---


async def a_manifest(store: Store) -> AcceptedManifest:
    return AcceptedManifest.read(await store.get(await first(store, ingest.ACCEPTED)))


def of_manifest(key: Callable[[AcceptedManifest], str], *, names_itself: bool = False) -> Spot:
    async def spot(store: Store) -> tuple[str, str]:
        manifest = await a_manifest(store)
        return key(manifest), key(manifest) if names_itself else manifest.key

    return spot


def of_ghost(key: Callable[[AcceptedManifest], str]) -> Spot:
    """What would refer to a batch that is not there."""

    def named(manifest: AcceptedManifest) -> str:
        identity = replace(manifest.identity, seq_start=10**9, seq_end=10**9 + 1)
        return key(replace(manifest, identity=identity))

    return of_manifest(named, names_itself=True)


def by_blob(manifest: AcceptedManifest) -> str:
    return ingest.accepted_by_blob_key(manifest.frame_sha256, manifest.identity)


def by_time(manifest: AcceptedManifest) -> str:
    return ingest.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity)


def blob_by_time(manifest: AcceptedManifest) -> str:
    return ingest.blob_by_time_key(manifest.accepted_at_unix_ns, manifest.frame_sha256)


def conflict_by_blob(manifest: AcceptedManifest) -> str:
    return ingest.conflict_by_blob_key(manifest.frame_sha256, manifest.identity)


async def unknown_schema(store: Store, key: str) -> None:
    await rewrite(store, key, schema="lightmetrics.accepted_batch.v9")


async def another_batch(store: Store, key: str) -> None:
    await rewrite(store, key, seq_end=10**6)


async def longer(store: Store, key: str) -> None:
    await rewrite(store, key, raw_blob_key=ingest.blob_key("0" * 64) + "~")


async def lying(store: Store, key: str) -> None:
    """It is as long as the one that follows from the manifest: a listing does not show that."""
    await rewrite(store, key, raw_blob_key=ingest.blob_key("0" * 64))


async def naming_nothing(store: Store, key: str) -> None:
    await store.put(key, codec.encode({"schema": references.ACCEPTED_BY_TIME_SCHEMA}), CREATE)


BLOB, MANIFEST = of_manifest(lambda each: each.raw_blob_key), of_manifest(lambda each: each.key)
spoilt("missing_blob", gone, BLOB)
spoilt("corrupt_blob", flipped, BLOB, deep=True)
spoilt("wrong_length", cut, BLOB)
spoilt("corrupt_manifest", cut, MANIFEST)
spoilt("corrupt_manifest", another_batch, MANIFEST)
spoilt("unknown_schema", unknown_schema, MANIFEST)
spoilt("missing_by_blob", gone, of_manifest(by_blob))
spoilt("missing_by_time", gone, of_manifest(by_time))
spoilt("missing_blob_by_time", gone, of_manifest(blob_by_time))
spoilt("wrong_reference", longer, of_manifest(by_blob, names_itself=True))
spoilt("wrong_reference", lying, of_manifest(by_blob, names_itself=True), deep=True)
spoilt("corrupt_by_time", naming_nothing, of_ghost(by_time))
spoilt("dangling_by_blob", stray, of_ghost(by_blob))
spoilt("dangling_blob_by_time", stray, of_ghost(lambda each: blob_by_time(replace(each, frame_sha256="0" * 64))))
spoilt("dangling_conflict_by_blob", stray, of_manifest(conflict_by_blob, names_itself=True))


@fault(deep=True)
async def manifest_that_counts_wrongly(store: Store) -> Expected:
    manifest = await a_manifest(store)
    await rewrite(store, manifest.key, records={"samples": sum(manifest.records.values()) + 1})
    document = codec.decode((await store.get(manifest.key)).body, key="")
    await rewrite(store, by_time(manifest), accepted_manifest=document)
    return {("wrong_records", manifest.key)}


@fault()
async def foreign_objects(store: Store) -> Expected:
    folders = (ingest.ACCEPTED, ingest.BLOBS, ingest.ACCEPTED_BY_TIME, ingest.CONFLICTS)
    keys = [f"{prefix}stray.txt" for prefix in folders]
    for key in keys:
        await stray(store, key)
    return {("foreign_object", key) for key in keys}


@fault()
async def bytes_that_are_no_frame(store: Store) -> Expected:
    key = ingest.blob_key(hashlib.sha256(b"{}").hexdigest())
    await stray(store, key)
    return {("foreign_blob", key)}


async def substitute(store: Store, made: AcceptedManifest) -> None:
    """Another manifest in place of the one of this identity, with references that follow from it."""
    before = AcceptedManifest.read(await store.get(made.key))
    await store.delete(by_blob(before))
    await store.put(made.key, made.encode(), OVERWRITE)
    for reference in references.of_accepted(made):
        await store.put(reference.key, reference.body, OVERWRITE)


@fault()
async def manifest_that_names_bytes_elsewhere(store: Store) -> Expected:
    made = replace(await a_manifest(store), raw_blob_key=ingest.blob_key("0" * 64))
    await substitute(store, made)
    return {("wrong_blob_key", made.key)}


@fault(deep=True)
async def bytes_of_a_newer_version(store: Store) -> Expected:
    body = b"a frame of another version"
    sha256 = hashlib.sha256(body).hexdigest()
    await store.put(ingest.blob_key(sha256), body, CREATE)
    manifest, key = await a_manifest(store), ingest.blob_key(sha256)
    made = replace(manifest, frame_sha256=sha256, frame_bytes=len(body), raw_blob_key=key)
    await substitute(store, made)
    return {("unreadable_frame", made.key)}


@fault(deep=True)
async def bytes_of_another_batch(store: Store) -> Expected:
    keys = [key async for key in store.keys(ingest.ACCEPTED)]
    manifest, other = [AcceptedManifest.read(await store.get(key)) for key in keys[:2]]
    blob = {name: getattr(other, name) for name in ("frame_sha256", "frame_bytes", "raw_blob_key")}
    await substitute(store, replace(manifest, **blob))
    return {("other_identity", manifest.key)}


# --- conflicts ---


def of_conflict(key: Callable[[str], str]) -> Spot:
    async def spot(store: Store) -> tuple[str, str]:
        conflict = await first(store, ingest.CONFLICTS)
        return key(conflict), conflict

    return spot


def bytes_of(conflict: str) -> str:
    return ingest.blob_key(hash_of(conflict))


def reference_of(conflict: str) -> str:
    identity = ingest.identity_in(conflict)
    assert identity is not None
    return ingest.conflict_by_blob_key(hash_of(conflict), identity)


def hash_of(conflict: str) -> str:
    return conflict.rpartition("/")[2].removesuffix(".json")


async def with_nothing(store: Store, key: str) -> None:
    await rewrite(store, key, accepted_frame_sha256="0" * 64)


spoilt("missing_evidence", gone, of_conflict(bytes_of))
spoilt("conflict_without_accepted", with_nothing, of_conflict(str))
spoilt("corrupt_conflict", cut, of_conflict(str))
spoilt("missing_conflict_by_blob", gone, of_conflict(reference_of))


@fault()
async def decision_about_nothing(store: Store) -> Expected:
    key = await first(store, ingest.RESOLUTIONS)
    ghost = f"{key.rpartition('/')[0]}/{'0' * 64}.json"
    body = (await store.get(key)).body
    final = b"existing_is_authoritative"
    assert final in body  # after such a decision garbage collection removes the conflict: that is no finding
    await store.put(f"{ghost[:-6]}1.json", body, CREATE)
    await store.put(ghost, body.replace(final, b"quarantine_identity"), CREATE)
    return {("resolution_of_nothing", ghost)}


# --- garbage ---


@remark
async def blob_that_was_left_behind(store: Store) -> Expected:
    """Its collector died between its two writes."""
    body = frame("web-9", 0, 3, 490_000 * 3_600 * 10**9, 9)
    key = ingest.blob_key(hashlib.sha256(body).hexdigest())
    await store.put(key, body, CREATE)
    return {("orphan_blob", key)}


@remark
async def objects_of_somebody_else(store: Store) -> Expected:
    for key in ("photos/2026/cat.jpg", "notes.txt"):
        await stray(store, key)
    return {("unknown_prefix", "photos/"), ("unknown_prefix", "notes.txt")}


@remark
async def payload_of_a_deleted_run(store: Store) -> Expected:
    await stray(store, runs.payload_key("gone", "0" * 32))
    return {("deleted_leftovers", runs.journal_key("gone"))}


@remark
async def fork_that_died(store: Store) -> Expected:
    await stray(store, runs.segment_key("stillborn", 0, 0, "0" * 8))
    return {("no_journal", runs.run_folder("stillborn"))}
