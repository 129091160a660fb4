"""Raw batches past their retention: their bytes go, once everything that they say is rolled up and indexed.

The order is the rule: hours sealed (``seal``), then the record of the expiry (``ingest.expired``), then a look for
batches that share numbers with it, then the blob. The manifest stays for ever; the record beside it says what became of
the bytes.

* A batch that shares sequence numbers with another is kept: which of them counts a number is decided by both.
* One that comes later and shares numbers with an expired batch finds them taken (``platform.taken``). It was planned
  after it was accepted, and the record was there before the look that did not find it: so no plan knows of the one and
  not of the other. If the look does find it, the bytes stay, and its hours are made due again.
* The age is that of the reference by time, by the store's clock; and the batch must be as old by the time at which it
  was accepted.

A shard is a day of acceptance. A day that was gone through to its end is marked with how many references it had, and
is passed over until it has more.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, Incompatible, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.ingest import expired, layout, references
from holdfast.ingest.expired import Expired
from holdfast.ingest.frame import Batch, FrameInvalid, Limits, decode
from holdfast.ingest.identity import BatchIdentity
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.ingest.reconcile import Coverage, neighbours_after, overlapping, shares
from holdfast.metrics.layout import coverage_key
from holdfast.metrics.manifest import Kind
from holdfast.objects.store import OVERWRITE, Entry, Object, Store
from holdfast.pipeline import layout as own
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.record import Sweep
from holdfast.pipeline.gc.seal import Seals
from holdfast.platform.taken import ranges_of, seqs_of

READS = 16
GROUP = 500
DAYS = "meta/pipeline/gc/days/"
KINDS = (Kind.ROLLUP, Kind.INDEX)
TEXTS = ("logs", "alerts", "total")
"""Counts in a manifest of records whose text is nowhere else; ``total`` tells nothing apart."""

EXPIRED = "past its retention, rolled up and indexed"
DERIVED = "it refers to an expired batch"
UNCOUNTED = "one of its hours does not count it"
NOWHERE = "its records are in no hour"
SHARES = "it shares sequence numbers with another batch"
UNREADABLE = "it cannot be read"


@dataclass(frozen=True, slots=True)
class Old:
    """A batch that may be let go as far as its age goes."""

    manifest: AcceptedManifest
    hours: tuple[int, ...]
    gone: tuple[tuple[int, int], ...] | None
    generations: tuple[str, ...] = ()


async def shards(store: Store) -> list[str]:
    found: list[str] = []
    async for page in store.list(layout.ACCEPTED_BY_TIME, delimiter=True):
        found += [folder.removeprefix(layout.ACCEPTED_BY_TIME).rstrip("/") for folder in page.folders]
    return found


async def expire(store: Store, ambient: Ambient, ask: Ask, out: Sweep) -> None:
    raw_ns = ask.options.raw_batches_ns
    if raw_ns is None or _start_ns(ask.shard) > ask.now_ns - raw_ns:
        return
    entries = [entry async for page in store.list(f"{layout.ACCEPTED_BY_TIME}{ask.shard}/") for entry in page.entries]
    mark = await store.find(f"{DAYS}{ask.shard}.json")
    if mark is not None and codec.decode(mark.body, key=mark.key).get("references") == len(entries):
        return
    out.tally.looked += len(entries)
    left = False
    seals = Seals(store, ambient, ask.apply)
    for start in range(0, len(entries), GROUP):
        group = entries[start : start + GROUP]
        old = await map_bounded(group, lambda entry: _old(store, entry, ask, out), limit=READS)
        gone = await _expire(store, ambient, [each for each in old if isinstance(each, Old)], seals, ask, out)
        left |= gone < sum(each is not False for each in old)
        if out.spent:
            out.tally.more = True
            return
    if ask.apply and not left:
        done = {"format": "holdfast.gc.day", "version": 1, "references": len(entries)}
        await store.put(f"{DAYS}{ask.shard}.json", codec.encode(done), OVERWRITE)


async def _old(store: Store, entry: Entry, ask: Ask, out: Sweep) -> Old | bool:
    """The batch that a reference leads to, if it is old enough. False if it is expired already; True if it stays."""
    try:
        manifest = _manifest(await store.get(entry.key))
    except (NotFound, Corrupt, Incompatible, Invalid):
        out.keep(UNREADABLE, entry.key)
        return True
    age_ns = _age_ns(manifest, ask)
    newest_ns = max(entry.modified_ns, manifest.accepted_at_unix_ns)
    if age_ns is None or newest_ns > ask.now_ns - age_ns:
        return True
    if await expired.find_expired(store, manifest.identity) is not None:
        return False
    try:
        batch = await blocking(_decoded, (await store.get(manifest.raw_blob_key)).body, manifest)
    except (NotFound, FrameInvalid, Corrupt, Invalid):
        out.keep(UNREADABLE, manifest.key)
        return True
    found, future = shares(batch, manifest.accepted_at_unix_ns)
    if not found or future:
        out.keep(NOWHERE, manifest.key)
        return True
    ranges = ranges_of(seqs_of(batch))
    whole = ranges == ((manifest.identity.seq_start, manifest.identity.seq_end),)
    return Old(manifest, tuple(share.hour for share in found), None if whole else ranges)


async def _expire(store: Store, ambient: Ambient, old: list[Old], seals: Seals, ask: Ask, out: Sweep) -> int:
    """How many of these are let go."""
    counted = [each for each in [await _counted(each, seals, out) for each in old] if each is not None]
    sharing = await _sharing(store, [each.manifest.identity for each in counted])
    for each in counted:
        if each.manifest.identity in sharing:
            out.keep(SHARES, each.manifest.key)
    chosen = [each for each in counted if each.manifest.identity not in sharing]
    if not ask.apply:
        for each in chosen:
            await out.remove(each.manifest.raw_blob_key, each.manifest.frame_bytes, EXPIRED)
        return len(chosen)
    policy = f"retention.raw_batches_s = {(ask.options.raw_batches_ns or 0) // 1_000_000_000}"
    chosen = chosen[: out.room(len(chosen))]
    await map_bounded(
        chosen,
        lambda each: expired.record(store, Expired.of_manifest(each.manifest, policy, each.generations, each.gone)),
        limit=READS,
    )
    late = await _sharing(store, [each.manifest.identity for each in chosen])
    for each in chosen:
        if each.manifest.identity in late:
            out.keep(SHARES, each.manifest.key)
            await _make_due(store, ambient, late[each.manifest.identity])
            continue
        await out.remove(each.manifest.raw_blob_key, each.manifest.frame_bytes, EXPIRED)
        for reference in list(references.of_accepted(each.manifest))[1:]:  # by time it is still found
            await out.remove_derived(reference.key, len(reference.body), DERIVED)
    return len(chosen) - len(late)


async def _counted(each: Old, seals: Seals, out: Sweep) -> Old | None:
    """The batch, with the generations that have counted all of it; None if one has not."""
    keys: list[str] = []
    for hour in each.hours:
        for kind in KINDS:
            seal = await seals.of(kind, hour)
            if isinstance(seal, str) or each.manifest.identity.manifest_id not in seal.inputs:
                out.keep(seal if isinstance(seal, str) else UNCOUNTED, each.manifest.key)
                return None
            keys.append(seal.key)
    return Old(each.manifest, each.hours, each.gone, tuple(keys))


async def _sharing(store: Store, identities: list[BatchIdentity]) -> dict[BatchIdentity, list[BatchIdentity]]:
    """Those that share a number with another accepted batch, with the others. One LIST for each agent and boot."""
    boots: dict[tuple[str, str], list[BatchIdentity]] = defaultdict(list)
    for identity in identities:
        boots[identity.agent_id, identity.boot_id].append(identity)
    found: dict[BatchIdentity, list[BatchIdentity]] = {}
    for group in boots.values():
        around = await _around(store, sorted(group))
        for identity in group:
            if others := overlapping(identity, around):
                found[identity] = others
    return found


async def _around(store: Store, group: list[BatchIdentity]) -> list[BatchIdentity]:
    key = coverage_key(group[0].agent_id)
    stored = await store.find(key)
    longest = 0 if stored is None else Coverage.of(codec.decode(stored.body, key=key), key).longest(group[0])
    last = max(identity.seq_end for identity in group)
    folder = f"{layout.ACCEPTED}{layout.boot_path(group[0].agent_id, group[0].boot_id)}"
    found: list[BatchIdentity] = []
    async for name in store.keys(folder, after=neighbours_after(group[0], longest)):
        other = layout.identity_in(name)
        if other is not None and other.seq_start > last:
            break
        if other is not None:
            found.append(other)
    return found


async def _make_due(store: Store, ambient: Ambient, others: list[BatchIdentity]) -> None:
    """Have the hours of these derived again: they may have been, without knowing that numbers were taken."""
    for identity in others:
        stored = await store.find(layout.accepted_key(identity))
        manifest = None if stored is None else AcceptedManifest.read(stored)
        blob = None if manifest is None else await store.find(manifest.raw_blob_key)
        if manifest is None or blob is None:
            continue
        batch = await blocking(_decoded, blob.body, manifest)
        for share in shares(batch, manifest.accepted_at_unix_ns)[0]:
            for kind in KINDS:
                body = codec.encode({"kind": str(kind), "write_id": ambient.ids.write_id()})
                await store.put(own.due_key(kind, share.hour, manifest.identity.manifest_id), body, OVERWRITE)


def _decoded(body: bytes, manifest: AcceptedManifest) -> Batch:

    if hashlib.sha256(body).hexdigest() != manifest.frame_sha256:
        raise Corrupt(f"{manifest.raw_blob_key}: its bytes are not those that were accepted")
    return decode(body, Limits(frame_bytes=max(1, len(body))))


def _manifest(found: Object) -> AcceptedManifest:
    document = codec.decode(found.body, key=found.key)
    key, inner = document.get("accepted_manifest_key"), document.get("accepted_manifest")
    if not isinstance(key, str) or not isinstance(inner, dict):
        raise Corrupt(f"{found.key}: names no manifest")
    return AcceptedManifest.read(Object(key, codec.encode(inner), found.modified_ns, found.version))


def _age_ns(manifest: AcceptedManifest, ask: Ask) -> int | None:
    """How old the batch must be; None if it is kept for ever."""
    raw_ns, logs_ns = ask.options.raw_batches_ns, ask.options.logs_ns
    if not manifest.records or any(manifest.records.get(name) for name in TEXTS):
        return None if raw_ns is None or logs_ns is None else max(raw_ns, logs_ns)
    return raw_ns


def _start_ns(day: str) -> int:
    """When a day begins; of what is no day, the end of time."""
    try:
        moment = datetime.fromisoformat(day.removeprefix("date=")).replace(tzinfo=UTC)
    except ValueError:
        return 1 << 62
    return int(moment.timestamp()) * 1_000_000_000
