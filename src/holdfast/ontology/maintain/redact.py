"""Carry out the redaction that a commit orders: after the commit, and again after a crash, until it is done.

A file that was rewritten bears the number of the ordering commit (``redacted``), by which readers at earlier heads know
that they were overtaken (``fence``).

Order: files and manifests first, then the index (without snapshots), then the snapshots and other garbage that may have
the payload, then the record. Files of chains that have ended are files of history too. Each file is overwritten
if-match under its own key, and its manifest gets the new hash, row count and statistics: so the chain stays as it
is, plain readers find what they expect, and ``verify`` has nothing to excuse. Every step is idempotent.

A compactor that has read a file before cannot bring the payload back: it publishes through the index, which is written
here after the files, and it looks for redactions at the head before it publishes.

Copies that others keep (disk caches, open sessions) are dropped when they see the record; backups are out of reach.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded
from holdfast.base.clock import iso
from holdfast.base.errors import Conflict, Corrupt
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, IfMatch, Lost, Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.resolve import resolve_by_chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.footer import stats_of
from holdfast.ontology.format.data.stored_rows import redacted
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.format.redactions import Redaction, Rewritten, finished, record_body, redaction_of
from holdfast.ontology.format.stats import FileStats
from holdfast.ontology.maintain.leftovers import Ordered, leftovers, remove, snapshot_span
from holdfast.ontology.maintain.reindex import write_index
from holdfast.ontology.types.refs import FileRef, Place, TypeId

PARALLEL = 8
TRIES = 16

Watch = Callable[[int, int], None]


async def unfinished(store: Store, chain: Chain, head: Place | None) -> list[Place]:
    """The commits on the chain whose redaction was not carried through, oldest first."""
    found: list[Place] = []
    place = (await chain.ledger(head)).redacted
    while place is not None:
        if not await finished(store, place):
            found.append(place)
        manifest = await chain.manifest(place)
        place = (await chain.ledger_of(manifest.parent)).redacted
    return found[::-1]


async def perform(store: Store, ambient: Ambient, place: Place, *, watch: Watch | None = None) -> int:
    """Destroy the payload that the commit at ``place`` names; returns how many files were rewritten. Idempotent."""
    chain = Chain(store)
    manifest = await chain.manifest(place)
    redaction = redaction_of(manifest)
    if redaction is None or await finished(store, place):
        return 0
    # In the order of commits: a record says that whatever was ordered before is done too, and readers rely on it.
    before = (await chain.ledger_of(manifest.parent)).redacted
    if before is not None:
        await perform(store, ambient, before)
    last = await chain.at(place, redaction.last)
    files = await chain.files(redaction.first - 1, last, checkpoints=False)
    wanted = [ref for ref in files if ref.type_id == redaction.type_id]
    done = 0

    async def one(ref: FileRef) -> Rewritten | None:
        nonlocal done
        found = await _rewrite(store, ref, redaction, place.commit_id)
        done += 1
        if watch is not None:
            watch(done, len(wanted))
        return found

    changed = [each for each in await map_bounded(wanted, one, limit=PARALLEL) if each is not None]
    changed_manifests = await _forget_keys(store, {ref.path for ref in wanted}) if redaction.identity is None else []
    await _renew_index(store, ambient, redaction.type_id, {each.path: each.stats for each in changed})
    await _remove_snapshots(store, redaction)
    await remove(store, await leftovers(store, Ordered(redaction, place)))
    body = record_body(changed, changed_manifests, place, iso(ambient.clock.wall_ns()))
    await store.put(layout.redaction_key(place.path), body, CREATE)
    return len(changed)


# --- one file ---


async def _rewrite(store: Store, ref: FileRef, redaction: Redaction, commit_id: int) -> Rewritten | None:
    """Rewrite the file, then its manifest. None if the file has none of the payload."""
    for _ in range(TRIES):
        found = await store.get(ref.path)
        body = await blocking(redacted, found.body, ref.path, redaction, commit_id)
        if body is None:
            return None
        if body != found.body and isinstance(await store.put(ref.path, body, IfMatch(found.version)), Lost):
            continue
        return await _tell_manifest(store, ref, body, commit_id)
    raise Conflict(f"{ref.path}: others keep rewriting it")


async def _tell_manifest(store: Store, ref: FileRef, body: bytes, commit_id: int) -> Rewritten:
    key = f"{layout.folder_of(ref.path)}manifest.json"
    digest = hashlib.sha256(body).hexdigest()
    for _ in range(TRIES):
        found = await store.get(key)
        document = codec.decode(found.body, key=key)
        entry = next((each for each in document["files"] if each["path"] == ref.path), None)
        if entry is None:
            raise Corrupt(f"{key}: it does not name {ref.path}, which the chain does")
        before = str(entry.get("content_sha256", ""))
        stats = stats_of(body, key=ref.path)
        made = Rewritten(ref.path, key, before, digest, stats)
        if entry.get("content_sha256") == digest and commit_id in entry.get("redacted_by", ()):
            return made
        entry |= {"content_sha256": digest, "row_count": stats.rows, "stats": stats.document()}
        entry["redacted_by"] = sorted({*entry.get("redacted_by", ()), commit_id})
        if not isinstance(await store.put(key, codec.encode(document), IfMatch(found.version)), Lost):
            return made
    raise Conflict(f"{key}: others keep rewriting it")


# --- what was derived from it ---


async def _forget_keys(store: Store, paths: set[str]) -> list[str]:
    """Manifests of later commits, and of attempts at them, name the least and the greatest keys of recent files."""
    keys: list[str] = []
    async for page in store.list(layout.COMMITS, delimiter=True):
        keys += [f"{folder}manifest.json" for folder in page.folders]

    async def one(key: str) -> str | None:
        for _ in range(TRIES):
            found = await store.find(key)
            document = codec.decode(found.body, key=key) if found is not None else {}
            recent, stats = document.get("recent") or [], document.get("recent_stats") or []
            kept = [None if ref[3] in paths else each for ref, each in zip(recent, stats, strict=False)]
            if found is None or kept == stats:
                return None
            body = codec.encode({**document, "recent_stats": kept})
            if not isinstance(await store.put(key, body, IfMatch(found.version)), Lost):
                return key
        raise Conflict(f"{key}: others keep rewriting it")

    return [key for key in await map_bounded(keys, one, limit=PARALLEL) if key is not None]


async def _renew_index(store: Store, ambient: Ambient, type_id: TypeId, stats: Mapping[str, FileStats | None]) -> None:
    """Without snapshots and old statistics. Written in any case: a compactor that has read it must lose."""
    for _ in range(TRIES):
        index = await read_index(store, type_id)
        chain = Chain(store)
        ledger = await chain.ledger((await read_head(store)).place)
        resolved = await resolve_by_chain(chain, ledger, type_id)
        entries = tuple(replace(each, stats=stats.get(each.path, each.stats)) for each in resolved.entries)
        renewed = type(index)(type_id, ledger.commit_id, entries, index.version, index.extra)
        if await write_index(store, ambient, renewed):
            return
    raise Conflict(f"{layout.index_key(*type_id)}: others keep writing it")


async def _remove_snapshots(store: Store, redaction: Redaction) -> None:
    """Every one that covers a redacted commit, whether or not an index ever named it."""
    covering: list[str] = []
    async for page in store.list(layout.SNAPSHOTS):
        for entry in page.entries:
            span = snapshot_span(entry.key, redaction.type_id)
            if span is not None and span[0] <= redaction.last and redaction.first <= span[1]:
                covering.append(entry.key)
    await store.delete_many(covering)
