"""The audit of what was accepted: spans of manifests forward, spans of references and blobs back."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.base.audit import Tally
from holdfast.base.ids import Ambient
from holdfast.objects.store import Entry
from holdfast.pipeline.audit_desk import Desk
from holdfast.pipeline.audit_hours import Hours, check_listed
from holdfast.pipeline.audit_spans import Span, entries, past
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.audit import BLOB_BY_TIME, BY_BLOB, BY_TIME, CONFLICT_BY_BLOB, BatchCheck, part_of
from holdfast.telemetry.accept.audit_back import Back, Side, sha256_of_reference
from holdfast.telemetry.accept.audit_gatherings import GatheringCheck
from holdfast.telemetry.accept.audit_rules import RULES
from holdfast.telemetry.accept.resolutions import Resolutions

ACCEPTED, CONFLICTS, RESOLUTIONS, BLOBS = "accepted", "conflicts", "resolutions", "blobs"
GATHERINGS = "gatherings"
FORWARD = {ACCEPTED: layout.ACCEPTED, CONFLICTS: layout.CONFLICTS, RESOLUTIONS: layout.RESOLUTIONS}
BACK = {
    BY_TIME: layout.ACCEPTED_BY_TIME,
    BLOB_BY_TIME: layout.BLOBS_BY_TIME,
    BLOBS: layout.BLOBS,
    GATHERINGS: layout.GATHERINGS,
}
ALONGSIDE = (layout.ACCEPTED_BY_BLOB, layout.CONFLICTS_BY_BLOB)
"""Listed together with blobs."""
LOOSE_AT_ONCE = 256


async def forward(desk: Desk, span: Span) -> Span | None:
    check = batch_check(desk)
    if span.space == ACCEPTED:
        return await desk.walk(span, _accepted(desk, check))
    return await desk.walk(span, check.conflict if span.space == CONFLICTS else check.resolution)


async def named(desk: Desk, keys: Sequence[Entry]) -> None:
    """Manifests and conflicts that somebody else has listed."""
    check = batch_check(desk)
    await desk.each([entry for entry in keys if entry.key.startswith(layout.ACCEPTED)], _accepted(desk, check))
    await desk.each([entry for entry in keys if entry.key.startswith(layout.CONFLICTS)], check.conflict)


def _accepted(desk: Desk, check: BatchCheck) -> Callable[[Entry, Tally], Awaitable[None]]:
    hours = Hours(desk.store)

    async def accepted(entry: Entry, tally: Tally) -> None:
        seen = await check.accepted(entry, tally)
        if seen.manifest is not None and seen.batch is not None and seen.reconciled:
            await check_listed(hours, seen.manifest, seen.batch, tally)

    return accepted


def batch_check(desk: Desk) -> BatchCheck:
    resolutions = Resolutions(desk.store, Ambient.system())  # it only reads
    return BatchCheck(desk.store, desk.look, desk.limits, resolutions, desk.reconciled_ns)


async def back(desk: Desk, span: Span) -> Span | None:
    if span.space == GATHERINGS:
        return await _gatherings(desk, span)
    back = Back(desk.store, desk.look, desk.counted)
    return await (_blobs(desk, back, span) if span.space == BLOBS else _references(desk, back, span))


async def _gatherings(desk: Desk, span: Span) -> Span | None:
    check = GatheringCheck(desk.store, desk.look)
    async for page in entries(desk.store, span):
        desk.tally.peak("reference", max(entry.modified_ns for entry in page))
        await desk.each(page, check.gathering)
        desk.room -= len(page)
        if desk.room <= 0:
            return replace(span, after=page[-1].key)
    return None


async def _references(desk: Desk, back: Back, span: Span) -> Span | None:
    """References by time, hour by hour."""
    kind, part, count = span.space, "", 0
    async for page in entries(desk.store, span):
        for entry in page:
            if not back.is_ours(kind, entry.key):
                _foreign(desk, entry)
                continue
            own = part_of(kind, entry.key)
            if own != part:
                await _settle(desk, back, kind, part, count)
                part, count = own, 0
            if kind == BY_TIME:
                desk.tally.peak("reference", entry.modified_ns)
            count += desk.look.judges(entry.modified_ns)
        desk.room -= len(page)
        if desk.room <= 0 and part:
            # Hours are counted as a whole: this one is listed to its end, and the rest is somebody else's.
            await _settle(desk, back, kind, part, await _count(desk, kind, part))
            return replace(span, after=past(part))
    await _settle(desk, back, kind, part, count)
    return None


async def _count(desk: Desk, kind: str, part: str) -> int:
    count = 0
    async for page in entries(desk.store, Span(kind, part)):
        count += sum(desk.look.judges(entry.modified_ns) for entry in page)
    return count


async def _settle(desk: Desk, back: Back, kind: str, part: str, count: int) -> None:
    """A part that was listed to its end: if it has more than it should, every reference in it is followed."""
    desk.tally.checked[f"{kind} references"] += count
    if not part or not back.surplus(part, count):
        return
    async for page in entries(desk.store, Span(kind, part)):
        own = [entry for entry in page if back.is_ours(kind, entry.key)]
        await desk.each(own, lambda entry, tally: back.follow(kind, entry.key, tally))


async def _blobs(desk: Desk, back: Back, span: Span) -> Span | None:
    """Blobs beside the references to them, by hash. Parts are those of the first byte."""
    by_blob, conflicts = layout.ACCEPTED_BY_BLOB, layout.CONFLICTS_BY_BLOB
    blobs = Side(_stream(desk, span), layout.blob_hash)
    accepted = Side(_stream(desk, span.moved(by_blob)), sha256_of_reference(BY_BLOB, back))
    refused = Side(_stream(desk, span.moved(conflicts)), sha256_of_reference(CONFLICT_BY_BLOB, back))
    sides = (blobs, accepted, refused)
    for side in sides:
        await side.step(lambda entry: _foreign(desk, entry))
    part, counts = "", {BY_BLOB: 0, CONFLICT_BY_BLOB: 0}
    loose: list[Entry] = []
    while any(side.entry is not None for side in sides):
        sha256 = min(side.sha256 for side in sides if side.entry is not None)
        if sha256[:2] != part:
            await _settle_blobs(desk, back, part, counts)
            if desk.room <= 0:
                await desk.each(loose, back.loose)
                return replace(span, after=past(f"{layout.BLOBS}{part}/"))
            part, counts = sha256[:2], {BY_BLOB: 0, CONFLICT_BY_BLOB: 0}
        blob = blobs.entry if blobs.entry is not None and blobs.sha256 == sha256 else None
        found = {
            kind: await _drain(desk, side, sha256) for kind, side in ((BY_BLOB, accepted), (CONFLICT_BY_BLOB, refused))
        }
        for kind, (judged, _) in found.items():
            counts[kind] += judged
        if blob is not None:
            desk.tally.checked["blobs"] += 1
            desk.room -= 1
            if not any(total for _, total in found.values()):
                loose.append(blob)
            elif not found[BY_BLOB][1] and desk.look.closely(blob.key):
                await desk.each([blob], back.evidence)
            await blobs.step(lambda entry: _foreign(desk, entry))
        if len(loose) >= LOOSE_AT_ONCE:
            await desk.each(loose, back.loose)
            loose = []
    await _settle_blobs(desk, back, part, counts)
    await desk.each(loose, back.loose)
    return None


async def _drain(desk: Desk, side: Side, sha256: str) -> tuple[int, int]:
    """References to one blob: how many are old enough to be judged, and how many there are."""
    judged = total = 0
    while side.entry is not None and side.sha256 == sha256:
        judged += desk.look.judges(side.entry.modified_ns)
        total += 1
        desk.room -= 1
        await side.step(lambda entry: _foreign(desk, entry))
    return judged, total


async def _settle_blobs(desk: Desk, back: Back, part: str, counts: Mapping[str, int]) -> None:
    if part:
        await _settle(desk, back, BY_BLOB, f"{layout.ACCEPTED_BY_BLOB}{part}/", counts[BY_BLOB])
        await _settle(desk, back, CONFLICT_BY_BLOB, f"{layout.CONFLICTS_BY_BLOB}{part}/", counts[CONFLICT_BY_BLOB])


async def _stream(desk: Desk, span: Span) -> AsyncIterator[Entry]:
    async for page in entries(desk.store, span):
        for entry in page:
            yield entry


def _foreign(desk: Desk, entry: Entry) -> None:
    if desk.look.judges(entry.modified_ns):
        desk.tally.find(RULES["foreign_object"], entry.key, "its name is none of ours")
