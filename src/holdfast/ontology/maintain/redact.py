"""Destroy payload: carry out the redaction that a commit ordered, after the commit, and again after a crash.

Order of the steps: data files and their manifests, then the index (without snapshots), then snapshots and other objects
that may hold the payload, then the record. Files of lives that have ended are part of history and are rewritten too.
Each file is overwritten under its own key, over the version that was read, and its manifest gets the new hash, row
count and statistics. So the chain stays as it is, and plain readers and ``verify`` find what they expect. Every step is
idempotent. A rewritten file carries the number of the ordering commit, see ``chain.redaction_fence``.

A compactor that has read a file before cannot bring payload back: the index is written after the files, so a
publication that is based on the index before fails, and a compactor compares redactions before it publishes.

Copies in disk caches and open sessions are dropped when these see the record. Backups are out of reach.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Corrupt
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, IfMatch, Object, Store, Written
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.edits import TRIES, edit
from holdfast.ontology.chain.redaction_fence import Ordered, fence_of
from holdfast.ontology.chain.resolve import resolve_by_chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.footer import stats_of
from holdfast.ontology.format.data.stored_rows import redacted
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Index
from holdfast.ontology.format.redactions import Redaction, Rewritten, record_body
from holdfast.ontology.format.stats import FileStats
from holdfast.ontology.maintain.leftovers import leftovers, remove, snapshot_span
from holdfast.ontology.maintain.reindex import update_index
from holdfast.ontology.types.refs import FileRef, TypeId

PARALLEL = 8


async def finish_redactions(store: Store, ambient: Ambient) -> list[int]:
    """Carry out every redaction that was ordered and is not finished. Returns the commits that ordered them.

    The oldest comes first: a record says that all earlier redactions are finished too, and readers rely on it.
    """
    chain = Chain(store)
    ledger = await chain.ledger((await read_head(store)).place)
    pending = (await fence_of(store, chain, ledger)).pending
    for ordered in pending:
        await _carry_out(store, ambient, ordered)
    return [ordered.place.commit_id for ordered in pending]


async def _carry_out(store: Store, ambient: Ambient, ordered: Ordered) -> None:
    place, redaction, chain = ordered.place, ordered.redaction, Chain(store)
    last = await chain.at(place, redaction.last)
    files = await chain.files(redaction.first - 1, last, checkpoints=False)
    wanted = [ref for ref in files if ref.type_id == redaction.type_id]

    async def one(ref: FileRef) -> Rewritten | None:
        return await rewrite(store, ref, redaction, place.commit_id)

    changed = [each for each in await map_bounded(wanted, one, limit=PARALLEL) if each is not None]
    manifests = await _remove_key_bounds(store, {ref.path for ref in wanted}) if redaction.identity is None else []
    await _renew_index(store, ambient, redaction.type_id, {each.path: each.stats for each in changed})
    await _remove_snapshots(store, redaction)
    await remove(store, await leftovers(store, ordered))
    body = record_body(changed, manifests, place, iso(ambient.clock.wall_ns()))
    await store.put(layout.redaction_key(place.path), body, CREATE)


# --- data files and manifests ---


async def rewrite(store: Store, ref: FileRef, redaction: Redaction, commit_id: int) -> Rewritten | None:
    """Rewrite a data file, then its entry in its manifest. None if the file has none of the payload."""
    for _ in range(TRIES):
        found = await store.get(ref.path)
        body = await blocking(redacted, found.body, ref.path, redaction, commit_id)
        if body is None:
            return None
        if body == found.body or isinstance(await store.put(ref.path, body, IfMatch(found.version)), Written):
            return await _update_manifest(store, ref, body, commit_id)
    raise Conflict(f"{ref.path}: other writers keep rewriting it", remedy="holdfast onto erase --resume")


async def _update_manifest(store: Store, ref: FileRef, body: bytes, commit_id: int) -> Rewritten:
    key = f"{layout.folder_of(ref.path)}manifest.json"
    digest, stats = hashlib.sha256(body).hexdigest(), stats_of(body, key=ref.path)
    before = ""

    def change(found: Object | None) -> Document | None:
        nonlocal before
        document = codec.decode(found.body, key=key) if found is not None else {}
        entry = next((each for each in document.get("files", ()) if each["path"] == ref.path), None)
        if entry is None:
            raise Corrupt(f"{key}: it does not name {ref.path}, which the chain does")
        before, marks = str(entry.get("content_sha256", "")), entry.get("redacted_by", [])
        if before == digest and commit_id in marks:
            return None
        entry |= {"content_sha256": digest, "row_count": stats.rows, "stats": stats.document()}
        entry["redacted_by"] = sorted({*marks, commit_id})
        return document

    await edit(store, key, change)
    return Rewritten(ref.path, key, before, digest, stats)


async def _remove_key_bounds(store: Store, paths: set[str]) -> list[str]:
    """Remove the least and greatest keys of these files from other manifests, which list them for recent files.

    Returns the manifests that changed; some of them may be of commit attempts that are not on the chain.
    """
    keys: list[str] = []
    async for page in store.list(layout.COMMITS, delimiter=True):
        keys += [f"{folder}manifest.json" for folder in page.folders]

    async def one(key: str) -> bool:
        changed = False

        def change(found: Object | None) -> Document | None:
            nonlocal changed
            document = codec.decode(found.body, key=key) if found is not None else {}
            recent, stats = document.get("recent") or [], document.get("recent_stats") or []
            kept = [None if ref[3] in paths else each for ref, each in zip(recent, stats, strict=False)]
            changed = kept != stats
            return {**document, "recent_stats": kept} if changed else None

        await edit(store, key, change)
        return changed

    changes = await map_bounded(keys, one, limit=PARALLEL)
    return [key for key, changed in zip(keys, changes, strict=True) if changed]


# --- what was derived from them ---


async def _renew_index(store: Store, ambient: Ambient, type_id: TypeId, stats: Mapping[str, FileStats | None]) -> None:
    """Write the index without snapshots and old statistics, also if it does not change: a compactor that has read it
    before must fail to publish."""

    async def change(index: Index) -> Index:
        chain = Chain(store)
        ledger = await chain.ledger((await read_head(store)).place)
        resolved = await resolve_by_chain(chain, ledger, type_id)
        entries = tuple(replace(each, stats=stats.get(each.path, each.stats)) for each in resolved.entries)
        return replace(index, watermark=ledger.commit_id, entries=entries)

    await update_index(store, ambient, type_id, change)


async def _remove_snapshots(store: Store, redaction: Redaction) -> None:
    """Delete every snapshot that covers a redacted commit, whether or not an index ever named it."""
    covering: list[str] = []
    async for key in store.keys(layout.SNAPSHOTS):
        span = snapshot_span(key, redaction.type_id)
        if span is not None and span[0] <= redaction.last and redaction.first <= span[1]:
            covering.append(key)
    await store.delete_many(covering)
