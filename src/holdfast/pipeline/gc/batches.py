"""Raw batches past their retention: their bytes are removed, once every hour of their records is closed.

A reference by time only says where to look: it may be forged. The accepted manifest is loaded, the reference must be at
the key that follows from that manifest, the bytes must be of that identity, and the key that is deleted follows from
the hash in the manifest. The bytes of a batch with an open conflict are evidence, and stay; the records of resolved
conflicts name its bytes too, and go before them.

The order is the rule: every hour of the batch is closed (``publish.close``) and counts it, then the record of the
expiry is written (``accept.expired``), then the blob is deleted, and its references last: as long as the reference by
blob exists, the next run finishes what a killed one left. The manifest stays for ever; the record beside it says what
became of the bytes. A batch that came too late for an hour that is closed stays. The age is that of the reference
by time, by the store's clock; the batch must be as old by the time at which it was accepted, and so must its hours be:
no batch of theirs is accepted any more (``ingest.max_age_s``).

A shard is a day of acceptance. A day of which nothing is left is marked with how many references it had, and is passed
over until it has more.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, Incompatible, Invalid, NotFound
from holdfast.objects.store import OVERWRITE, Entry, Store
from holdfast.pipeline.gc.orphans import record_of
from holdfast.pipeline.gc.sweep import Sweep
from holdfast.pipeline.publish.close import Closing
from holdfast.telemetry.accept import expired, layout, references
from holdfast.telemetry.accept.conflicts import Resolutions, conflicts_of
from holdfast.telemetry.accept.expired import Expired
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.accept.reconcile import shares
from holdfast.telemetry.batches import decode_checked
from holdfast.telemetry.discover import NoBatch, follow
from holdfast.telemetry.frame import FrameInvalid, Limits
from holdfast.telemetry.rollup.layout import hour_start_ns

READS = 16
GROUP = 500
DAYS = "meta/pipeline/gc/days/"
TEXTS = ("logs", "alerts", "total")
"""Record counts of a manifest that are not samples: their text is stored only in the batch. ``total``: the kinds are
unknown."""

EXPIRED = "past its retention, and its hours are closed"
DERIVED = "it refers to an expired batch"
TOO_LATE = "it was found after one of its hours was closed"
YOUNG = "batches of one of its hours may still be accepted"
NOWHERE = "some of its records are in no hour"
UNREADABLE = "it cannot be read"
STRAY = "the reference leads to no batch that was accepted then"
FORGED = "its manifest, its bytes and their identity do not agree"
EVIDENCE = "it is part of a conflict that is not resolved"


@dataclass(frozen=True, slots=True)
class Old:
    """A batch that is old enough for its bytes to be removed."""

    manifest: AcceptedManifest
    hours: tuple[int, ...]
    conflicts: tuple[ConflictManifest, ...] = ()
    """The conflicts over its identity; all are finally resolved."""
    generations: tuple[str, ...] = ()
    recorded: bool = False
    """A run that was killed has recorded its expiry, and may have left its bytes."""


async def shards(store: Store) -> list[str]:
    found: list[str] = []
    async for page in store.list(layout.ACCEPTED_BY_TIME, delimiter=True):
        found += [folder.removeprefix(layout.ACCEPTED_BY_TIME).rstrip("/") for folder in page.folders]
    return found


async def expire(day: str, out: Sweep) -> None:
    raw_ns, store = out.options.raw_batches_ns, out.store
    if raw_ns is None or _start_ns(day) > out.ask.now_ns - raw_ns:
        return
    entries = [entry async for page in store.list(f"{layout.ACCEPTED_BY_TIME}{day}/") for entry in page.entries]
    mark = await store.find(f"{DAYS}{day}.json")
    if mark is not None and codec.decode(mark.body, key=mark.key).get("references") == len(entries):
        return
    out.looked(len(entries))
    left = False
    closing = Closing(store, out.ambient, Limits(), out.ask.apply)
    for start in range(0, len(entries), GROUP):
        group = entries[start : start + GROUP]
        old = await map_bounded(group, lambda entry: _old(entry, out), limit=READS)
        gone = await _expire([each for each in old if isinstance(each, Old)], closing, out)
        left |= gone < sum(each is not False for each in old)
        if out.exhausted():
            return
    if out.ask.apply and not left:
        await out.flush()
        done = {"format": "holdfast.gc.day", "version": 1, "references": len(entries)}
        await store.put(f"{DAYS}{day}.json", codec.encode(done), OVERWRITE)


async def _old(entry: Entry, out: Sweep) -> Old | bool:
    """The batch that a reference leads to, if it is old enough. False if it is removed already or does not match this
    reference; True if it is kept."""
    store = out.store
    try:
        manifest = await follow(store, entry.key)
    except (NotFound, Corrupt, Incompatible, Invalid):
        out.keep(UNREADABLE, entry.key)
        return True
    if isinstance(manifest, NoBatch):
        out.keep(STRAY, entry.key)
        return False
    age_ns = _age_ns(manifest, out)
    newest_ns = max(entry.modified_ns, manifest.accepted_at_unix_ns)
    if age_ns is None or newest_ns > out.ask.now_ns - age_ns:
        return True
    recorded = await expired.find_expired(store, manifest.identity) is not None
    if recorded and await store.find(layout.accepted_by_blob_key(manifest.frame_sha256, manifest.identity)) is None:
        return False
    if manifest.raw_blob_key != layout.blob_key(manifest.frame_sha256):
        out.keep(FORGED, manifest.key)
        return True
    conflicts = await _resolved(manifest, out)
    if conflicts is None:
        out.keep(EVIDENCE, manifest.key)
        return True
    if recorded:
        return Old(manifest, (), conflicts, recorded=True)
    try:
        body = (await store.get(manifest.raw_blob_key)).body
        batch = await blocking(decode_checked, body, manifest.frame_sha256, Limits(frame_bytes=max(1, len(body))))
    except (NotFound, FrameInvalid, Corrupt, Invalid):
        out.keep(UNREADABLE, manifest.key)
        return True
    if batch.identity != manifest.identity:
        out.keep(FORGED, manifest.key)
        return True
    found, future = shares(batch, manifest.limits)
    if not found or future:
        out.keep(NOWHERE, manifest.key)
        return True
    return Old(manifest, tuple(share.hour for share in found), conflicts)


async def _expire(old: list[Old], closing: Closing, out: Sweep) -> int:
    """Expire these; returns how many."""
    counted = [each for each in [await _counted(each, closing, out) for each in old] if each is not None]
    chosen = counted[: out.room(len(counted))]
    if out.ask.apply:
        policy = f"retention.raw_batches_s = {(out.options.raw_batches_ns or 0) // 1_000_000_000}"
        fresh = (each for each in chosen if not each.recorded)
        expiries = [Expired.of_manifest(each.manifest, policy, each.generations, each.hours) for each in fresh]
        await map_bounded(expiries, lambda each: expired.record(out.store, each), limit=READS)
    for each in chosen:
        records = [named for conflict in each.conflicts for named in record_of(conflict)]
        # By time the batch is still found.
        also = [(reference.key, len(reference.body), DERIVED) for reference in references.of_bytes(each.manifest)]
        blob = layout.blob_key(each.manifest.frame_sha256)
        await out.remove(blob, each.manifest.frame_bytes, EXPIRED, first=records, also=also)
    return len(chosen)


async def _counted(each: Old, closing: Closing, out: Sweep) -> Old | None:
    """The batch with the generations that closed its hours; None if one of its hours is open or does not count it."""
    keys: list[str] = []
    for hour in each.hours:
        if hour_start_ns(hour + 1) + (out.options.raw_batches_ns or 0) > out.ask.now_ns:
            out.keep(YOUNG, each.manifest.key)
            return None
    for hour in each.hours:
        closed = await closing.of(hour)
        if isinstance(closed, str):
            out.keep(closed, each.manifest.key)
            return None
        if each.manifest.identity.manifest_id not in closed.inputs:
            out.keep(TOO_LATE, each.manifest.key)
            return None
        keys.append(closed.key)
    return replace(each, generations=tuple(keys))


async def _resolved(manifest: AcceptedManifest, out: Sweep) -> tuple[ConflictManifest, ...] | None:
    """The conflicts over this identity; None if one is not finally resolved or cannot be read."""
    resolutions = Resolutions(out.store, out.ambient)
    try:
        found = await conflicts_of(out.store, manifest.identity)
        resolved = [await resolutions.may_go(each.identity, each.submitted_frame_sha256) for each in found]
    except (Corrupt, Incompatible):
        return None
    return tuple(found) if all(resolved) else None


def _age_ns(manifest: AcceptedManifest, out: Sweep) -> int | None:
    """How old the batch must be; None if it is kept for ever."""
    raw_ns, logs_ns = out.options.raw_batches_ns, out.options.logs_ns
    if not manifest.records or any(manifest.records.get(name) for name in TEXTS):
        return None if raw_ns is None or logs_ns is None else max(raw_ns, logs_ns)
    return raw_ns


def _start_ns(day: str) -> int:
    """When a day begins; the end of time for text that is not a day."""
    try:
        moment = datetime.fromisoformat(day.removeprefix("date=")).replace(tzinfo=UTC)
    except ValueError:
        return 1 << 62
    return int(moment.timestamp()) * 1_000_000_000
