"""Reconcile: find accepted batches that nobody has derived anything from, verify them, and say which hours they change.

Ordering, which is what makes a crash harmless: references; coverage; listings; marks of what is due; problems; events;
the checkpoint last. Everything before the checkpoint is created under names that follow from the batches, so a run that
is done again, or twice at once, changes nothing more.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.telemetry import logger
from holdfast.bus import Bus
from holdfast.pipeline import coverage, discover, due, layout, problems
from holdfast.pipeline.checkpoint import Checkpoint, Checkpoints, position_document, read_position
from holdfast.pipeline.discover import Discovered
from holdfast.pipeline.examine import Row, examine_task, payload_of
from holdfast.pipeline.job import Steps
from holdfast.pipeline.options import Env
from holdfast.pipeline.partition import divide
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept.reconcile import BROKEN, Finding, Problem
from holdfast.telemetry.discover import Position, Rule, look, read_ids, reference_id, resolved
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.query.fresh import listed
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup import listing
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Generation, Kind, read_generation

log = logger("pipeline")

AT_ONCE = 16
DEEP_EVERY_NS = 3_600 * 1_000_000_000
MOST_WAITING = 1_000
"""New references that are read before a run is begun, to know whether any leads to a batch."""
WORTH = 200
"""Batches that are worth a task of their own."""
NAMESPACE = "pipeline"
HOUR_CHANGED = "pipeline.hour_changed"


@dataclass(slots=True)
class Staged:
    """What one slice gave."""

    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    listings: list[tuple[int, str]] = field(default_factory=list)
    """Hour and key of each."""

    def document(self) -> Document:
        return {"counts": dict(self.counts), "listings": [list(each) for each in self.listings]}


class Reconcile:
    """The job. One run takes one slice; ``more`` in its summary says that there is another."""

    name = "reconcile"
    version = "1"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._ambient, self._options = env.store, env.ambient, env.options
        self._checkpoints = Checkpoints(env.store, env.ambient)
        self._rule = Rule()

    async def is_due(self) -> bool:
        """Whether there is anything to look at. If not, the checkpoint moves on at once."""
        if (await problems.broken(self._store)).keys:
            return True
        before = await self._checkpoints.read()
        position = await read_position(self._store, before)
        if position is None:
            return await self._has_anything(before)
        now_ns = self._ambient.clock.wall_ns()
        deep = self._wants_deep(before, position, now_ns)
        found = await look(self._store, self._ambient.clock, self._rule, position, deep=deep, limit=MOST_WAITING)
        if found.end.more:
            return True
        for start in range(0, len(found.fresh), AT_ONCE):  # usually the first of them leads to a batch
            batches, _, unreadable = await resolved(self._store, found.fresh[start : start + AT_ONCE])
            if batches or unreadable:
                return True
        end = found.end.without(each.id for each in found.fresh)
        await self._checkpoints.advance(self._ambient.ids.unique(), await self._to(before, end, now_ns, deep))
        return False

    async def _has_anything(self, before: Checkpoint | None) -> bool:
        """Whether a first scan has anything to look at. If not, it is over."""
        if before is not None and before.scan is not None:
            return True
        scan = await self._begin_scan()
        for prefix in (ingest.ACCEPTED, ingest.CONFLICTS):
            async for _ in self._store.keys(prefix):
                return True
        to = await self._to(before, Position.at(scan["from_ns"]), scan["began_ns"], deep=True)
        await self._checkpoints.advance(self._ambient.ids.unique(), replace(to, full_at_unix_ns=scan["store_ns"]))
        return False

    async def split(self, request: Document) -> list[Document]:
        """One run after the other takes up what the one before has left."""
        return [request]

    async def run(self, ctx: Steps, request: Document) -> Document:
        plan = await ctx.step("plan", self._plan, request)
        staged = await ctx.step("stage", self._stage, plan, ctx.run_id)
        published = await ctx.step("publish", self._publish, plan, staged, ctx.run_id)
        await ctx.step("verify", self._verify, staged)
        return {**staged["counts"], **published, "more": plan["more"], "next": plan["next"]}

    async def preview(self, request: Document) -> int:
        """How many keys a run would look at. Reads alone."""
        before = await self._checkpoints.read()
        position = await read_position(self._store, before)
        if _by_position(request) and position is not None:
            deep = self._wants_deep(before, position, self._ambient.clock.wall_ns())
            keys = len((await look(self._store, self._ambient.clock, self._rule, position, deep=deep)).fresh)
        else:
            keys, after = 0, None
            while True:
                found = await self._requested({"full": True} if _by_position(request) else request, after)
                keys, after = keys + len(found.keys), found.next
                if after is None:
                    break
        return keys + len((await problems.broken(self._store)).keys)

    # --- plan ---

    async def _plan(self, request: Document) -> Document:
        """What to look at. The keys are written down, so that a run that is resumed looks at the same."""
        before = await self._checkpoints.read()
        position = await read_position(self._store, before)
        broken = await problems.broken(self._store, None if before is None else before.broken_after)
        found, to, ids, more, from_ns = Discovered(), None, frozenset[bytes](), False, None
        if _by_position(request) and position is not None:
            now_ns = self._ambient.clock.wall_ns()
            deep, limit = self._wants_deep(before, position, now_ns), self._options.batches_at_once
            looked = await look(self._store, self._ambient.clock, self._rule, position, deep=deep, limit=limit)
            found = Discovered([each.reference for each in looked.fresh], listed=looked.count)
            to, ids, more = await self._to(before, looked.end, now_ns, deep), looked.end.recent, bool(looked.end.more)
        elif position is None and (_by_position(request) or _whole(request)):
            found, to, ids, from_ns = await self._scan(before)
            more = found.next is not None
        else:
            found = await self._requested(request, request.get("after"))
            more = found.next is not None
        known = set(found.keys)
        whole = _whole(request) and not more and to is None
        return {
            "keys": [*found.keys, *(key for key in broken.keys if key not in known)],
            "broken": broken.keys,
            "foreign": [each.document() for each in found.foreign],
            "listed": max(found.listed, len(found.keys)),
            "checkpoint": None if to is None else asdict(replace(to, broken_after=broken.last)),
            "recent": None if to is None else await self._checkpoints.write_recent(ids),
            "from_ns": from_ns,
            "more": more,
            "full_at_unix_ns": request.get("began_ns") if whole else None,
            "next": None if to is not None else found.next,
        }

    async def _requested(self, request: Document, after: str | None) -> Discovered:
        """What a request names."""
        limit = self._options.batches_at_once
        if request.get("keys") is not None:
            return Discovered(list(dict.fromkeys(request["keys"])))
        if request.get("full"):
            return await discover.scan(self._store, after, request.get("agents") or (), limit)
        until = request.get("until_ns") or self._ambient.clock.wall_ns()
        return await discover.between(self._store, request.get("since_ns") or 0, until, after, limit)

    async def _scan(self, before: Checkpoint | None) -> tuple[Discovered, Checkpoint, frozenset[bytes], int]:
        """The next part of the first scan. At its end everything that was referred to before it began is known."""
        scan = before.scan if before is not None and before.scan is not None else await self._begin_scan()
        limit = self._options.batches_at_once
        found = await discover.scan(self._store, scan.get("after"), (), limit)
        recent = await read_ids(self._store, None if before is None else before.recent)
        through = 0 if before is None else before.through_unix_ns
        if found.next is not None:
            return found, Checkpoint(through, scan={**scan, "after": found.next}), recent, scan["from_ns"]
        ends = await self._to(before, Position.at(scan["from_ns"]), scan["began_ns"], deep=True)
        return found, replace(ends, full_at_unix_ns=scan["store_ns"]), recent, scan["from_ns"]

    async def _begin_scan(self) -> Document:
        """A manifest that comes after this scan has passed its place comes too late for an older reference to count."""
        store_ns = await self._checkpoints.store_now()
        from_ns = max(0, store_ns - self._rule.horizon_ns)
        return {"from_ns": from_ns, "began_ns": self._ambient.clock.wall_ns(), "store_ns": store_ns}

    async def _to(self, before: Checkpoint | None, end: Position, now_ns: int, deep: bool) -> Checkpoint:
        """The checkpoint at the end of a look that began at ``now_ns``. Its ids are those of ``before``: this is for a
        look that gives nothing out, or is completed with its own."""
        through = before.through_unix_ns if before is not None and end.more else now_ns
        return Checkpoint(
            through,
            position_document(end),
            None if before is None else before.recent,
            deep_at_unix_ns=now_ns if deep and not end.more else 0,
            broken_after=None if before is None else before.broken_after,
        )

    def _wants_deep(self, before: Checkpoint | None, position: Position, now_ns: int) -> bool:
        if position.more:
            return False
        at_ns = 0 if before is None else before.deep_at_unix_ns
        return self._rule.deep(position) or abs(now_ns - at_ns) >= DEEP_EVERY_NS

    # --- stage ---

    async def _stage(self, plan: Document, run_id: str) -> Document:
        staged = Staged()
        waiting: list[str] = []
        given: list[str] = []
        found = [Problem.of(each) for each in plan["foreign"]]
        for start in range(0, max(1, len(plan["keys"])), self._options.batches_at_once):
            keys = plan["keys"][start : start + self._options.batches_at_once]
            rows = await self._examine(keys, "verify")
            waiting += [reference_id(row.key).hex() for row in rows if row.waiting]
            given += _given(rows, plan["from_ns"])
            found += await self._list(rows, staged, f"{run_id}/{start}")
            found += [each for row in rows for each in row.problems]
            await self._mend(set(plan["broken"]), rows, run_id)
        await problems.record(self._store, self._ambient, found)
        staged.counts |= {"looked_at": len(plan["keys"]), "listed": plan["listed"], "problems": len(found)}
        return {**staged.document(), "waiting": waiting, "given": given}

    async def _mend(self, broken: set[str], rows: list[Row], run_id: str) -> None:
        """What was broken and was read now. It may stand in units that were made without it: its hours are due."""
        read = [row for row in rows if row.manifest is not None and not any(p.finding in BROKEN for p in row.problems)]
        mended = {key: row for row in read if row.manifest is not None for key in (row.key, row.manifest.key)}
        for key in sorted(mended.keys() & broken):
            ident = hashlib.sha256(f"{run_id}\x00{key}".encode()).hexdigest()
            for share in mended[key].shares:
                await self._mark(share.hour, ident)
        await problems.mended(self._store, sorted(mended.keys() & broken))

    async def _examine(self, keys: Sequence[str], step: str) -> list[Row]:
        if not keys:
            return []
        groups = divide(keys, lambda _: 1, cores=await self._env.engine.cores(), worth=WORTH)
        payloads = [payload_of(group, self._options.limits) for group in groups]
        rows = await self._env.engine.run(
            f"reconcile {step}", examine_task, payloads, self._env.progress(f"reconcile: {step}")
        )
        return [Row.of(each) for each in rows]

    async def _list(self, rows: list[Row], staged: Staged, operation_id: str) -> list[Problem]:
        """Cover the batches, list them in their hours, and mark what is due. The overlaps that were found."""
        by_identity = {row.identity: row for row in rows if row.identity is not None}
        covered = await coverage.cover(self._store, self._ambient, by_identity, operation_id)
        for identity, told in covered.failed.items():
            row = by_identity.pop(identity)  # not listed before it is covered: it is looked at again in every run
            row.problems.append(Problem(Finding.NOT_COVERED, ingest.accepted_key(identity), told))
        again = covered.again
        pairs = await self._pairs(again)
        missing = sorted({other for others in pairs.values() for other in others if other not in by_identity})
        neighbours = await self._examine([ingest.accepted_key(each) for each in missing], "overlaps")
        everything = by_identity | {row.identity: row for row in neighbours if row.identity is not None}
        hours: dict[int, dict[BatchIdentity, Listed]] = defaultdict(dict)
        for identity, row in by_identity.items():
            _enter(hours, row, row)
            for other in pairs.get(identity, ()):
                if other in everything:
                    _enter(hours, row, everything[other])
                    _enter(hours, everything[other], row)
                    # It may be one that nobody has found yet.
                    _enter(hours, everything[other], everything[other])
        known = {each.identity for each in again}
        for hour in sorted(hours):
            await self._write_listing(hour, hours[hour], known, staged)
        self._count(staged, rows, pairs)
        return [_overlap(identity, others) for identity, others in sorted(pairs.items()) if others]

    async def _pairs(self, again: Iterable[coverage.Again]) -> dict[BatchIdentity, list[BatchIdentity]]:
        async def one(found: coverage.Again) -> tuple[BatchIdentity, list[BatchIdentity]]:
            return found.identity, await coverage.overlaps(self._store, found)

        return {identity: others for identity, others in await map_bounded(again, one, limit=AT_ONCE) if others}

    async def _write_listing(
        self, hour: int, rows: dict[BatchIdentity, Listed], known: set[BatchIdentity], staged: Staged
    ) -> None:
        """What is not listed yet. Only batches that were covered before can be."""
        if known & rows.keys():
            rows = await self._unlisted(hour, rows)
        if not rows:
            return
        key = await listing.write(self._store, hour, list(rows.values()))
        await self._mark(hour, listing.id_in(key))
        staged.listings.append((hour, key))

    async def _unlisted(self, hour: int, rows: dict[BatchIdentity, Listed]) -> dict[BatchIdentity, Listed]:
        """Rows that no listing has. Whoever wrote the listings that have the others may have died before it marked
        them as due: those that no generation covers are marked again.
        """
        there: dict[str, int] = {}
        holding: set[str] = set()
        wanted = {row.manifest_id for row in rows.values()}
        for ident in listing.ids(await listing.listings(self._store, hour)):
            for row in await self._listed(derived.batches_key(hour, ident)):
                there[row.manifest_id] = max(row.records, there.get(row.manifest_id, 0))
                if row.manifest_id in wanted:
                    holding.add(ident)
        if holding:
            generation = await self._generation(hour)
            for ident in sorted(holding - set(() if generation is None else generation.listings)):
                await self._mark(hour, ident)
        return {identity: row for identity, row in rows.items() if there.get(row.manifest_id, -1) < row.records}

    async def _listed(self, key: str) -> list[Listed]:
        """None of a listing that cannot be read: whoever derives its hour reports it."""
        try:
            return await listing.read(self._store, [key])
        except Corrupt as error:
            log.error("%s; its batches are listed again", error)
            return []

    async def _mark(self, hour: int, ident: str) -> None:
        await due.mark(self._store, self._ambient, Kind.ROLLUP, hour, ident)

    async def _generation(self, hour: int) -> Generation | None:
        try:
            return await read_generation(self._store, Kind.ROLLUP, hour)
        except (Corrupt, Incompatible) as error:
            log.error("%s; its hour is due", error)
            return None

    def _count(self, staged: Staged, rows: list[Row], pairs: dict[BatchIdentity, Any]) -> None:
        counts = staged.counts
        counts["batches"] += sum(row.manifest is not None and not row.expired for row in rows)
        counts["records"] += sum(share.records for row in rows for share in row.shares)
        counts["read_bytes"] += sum(row.read_bytes for row in rows)
        counts["references_written"] += sum(row.wrote for row in rows)
        counts["overlaps"] += len(pairs)
        counts["expired"] += sum(row.expired for row in rows)
        counts["broken"] += sum(any(each.finding in BROKEN for each in row.problems) for row in rows)

    # --- publish and verify ---

    async def _publish(self, plan: Document, staged: Document, run_id: str) -> Document:
        """Tell the bus, then move the checkpoint."""
        bus = Bus(self._store, self._ambient, NAMESPACE)
        for hour, key in staged["listings"]:
            payload = {"hour": layout.hour_name(hour), "listing": key}
            await bus.publish_raw(HOUR_CHANGED, payload, key=key)
        if plan["checkpoint"] is not None:
            stands = await self._checkpoints.advance(run_id, await self._reached(plan, staged))
            await self._checkpoints.drop_recent(stands.recent)
        if plan["full_at_unix_ns"] is not None:
            await self._checkpoints.scanned(run_id, plan["full_at_unix_ns"])
        return {"hours": sorted({layout.hour_name(hour) for hour, _ in staged["listings"]})}

    async def _reached(self, plan: Document, staged: Document) -> Checkpoint:
        """References that led to no batch were not given out: the next look reads them again. References of batches
        that a first scan has found were: no look need find them again.
        """
        recent = plan["recent"]
        waiting, given = ({bytes.fromhex(each) for each in staged[name]} for name in ("waiting", "given"))
        if waiting or given:
            recent = await self._checkpoints.write_recent(await read_ids(self._store, recent) - waiting | given)
        return replace(Checkpoint(**plan["checkpoint"]), recent=recent)

    async def _verify(self, staged: Document) -> Document:
        """What was written is there."""
        keys = [key for _, key in staged["listings"]]
        await map_bounded(keys, self._store.head, limit=AT_ONCE)
        return {"listings": len(keys)}


def _given(rows: Iterable[Row], from_ns: int | None) -> Iterator[str]:
    """Of the batches that a first scan has found, the references that were written since it began, or may have been."""
    for row in rows:
        if from_ns is not None and row.reference is not None and (row.written_ns >= from_ns or row.referred):
            yield reference_id(row.reference).hex()


def _whole(request: Document) -> bool:
    return bool(request.get("full")) and not request.get("agents")


def _by_position(request: Document) -> bool:
    """Whether a run continues where the last one ended."""
    return not request.get("full") and all(request.get(each) is None for each in ("keys", "since_ns", "until_ns"))


def _enter(hours: dict[int, dict[BatchIdentity, Listed]], where: Row, row: Row) -> None:
    """List the batch of ``row`` in every hour in which ``where`` has records."""
    manifest = row.manifest
    if manifest is None:
        return
    own = {share.hour: share for share in row.shares}
    identity = manifest.identity
    for hour in [share.hour for share in where.shares]:
        share = own.get(hour)
        facts = (0, None, None) if share is None else (share.records, share.first_ns, share.last_ns)
        hours[hour][identity] = listed(manifest, *facts)


def _overlap(identity: BatchIdentity, others: Sequence[BatchIdentity]) -> Problem:
    named = ", ".join(f"{other.seq_start}-{other.seq_end}" for other in others[:10])
    told = f"numbers {identity.seq_start}-{identity.seq_end} overlap {named}; each number counts once"
    return Problem(Finding.OVERLAP, ingest.accepted_key(identity), told)
