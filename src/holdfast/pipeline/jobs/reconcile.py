"""Reconcile: find accepted batches that nothing was derived from yet, verify them, and list them in their hours.

    found    := references since the last run's position, or scan(references of a time, all manifests)
    looked   := map(found and what could not be read, Verify)       bytes verified; a row for each hour of a batch
    again    := map(batches by shard, Cover)             of which batches a sequence number was known before
    around   := map(again, Around)                       the manifests next to those
    pairs    := around JOIN around, ranges that overlap  max(seq_end) over earlier rows of agent and boot finds them
    others   := map(pairs ANTI JOIN batches, Verify)
    listed   := map(hours of again, ReadListings)        what these hours list already
    written  := map(entries without a listing, WriteListings)       and marks of what is due

Order, which makes a crash harmless: references; coverage; listings, each before its marks; events; the checkpoint last.
Everything before the checkpoint is created under names that follow from the batches, so a run that is done again, or
twice at once, changes nothing more. A batch that shares numbers with another is in the hours of both.

The driver holds counts, the hours that were changed, and of a run by position the keys of one slice
(``batches_at_once``). A store has no position before the first scan of all manifests has ended.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.telemetry import logger
from holdfast.bus import Bus
from holdfast.pipeline import due, problems
from holdfast.pipeline.checkpoint import Checkpoint, Checkpoints, position_document, read_position
from holdfast.pipeline.engine import staged
from holdfast.pipeline.engine.protocol import Spread
from holdfast.pipeline.engine.relations import Relations, Step, relations
from holdfast.pipeline.job import Steps
from holdfast.pipeline.jobs.reconcile_kernels import (
    AGAIN,
    AROUND,
    BATCH,
    LISTED,
    LOOKED,
    REPORTED,
    WRITTEN,
    Around,
    Cover,
    ReadListings,
    ReportOverlaps,
    Verify,
    WriteListings,
)
from holdfast.pipeline.options import Env
from holdfast.pipeline.tables.batches import referred
from holdfast.pipeline.tables.objects import OBJECTS, ObjectsTable, Span, entries
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.discover import Position, Rule, read_ids, reference_id, resolve_all, scan
from holdfast.telemetry.rollup.layout import hour_name
from holdfast.telemetry.rollup.manifest import Kind

log = logger("pipeline")

AT_ONCE = 16
DEEP_EVERY_NS = 3_600 * 1_000_000_000
MOST_WAITING = 1_000
"""New references that are read before a run begins, to find out whether any leads to a batch."""
MOST_GIVEN = 50_000
NAMESPACE = "pipeline"
HOUR_CHANGED = "pipeline.hour_changed"

KEYS = pa.schema([("key", pa.string())])
TABLES = {
    "found": KEYS,
    "retried": KEYS,
    "looked": LOOKED,
    "again": AGAIN,
    "around": AROUND,
    "others": LOOKED,
    "reported": REPORTED,
    "listed": LISTED,
    "written": WRITTEN,
}
"""The staged tables, in this order."""

PROGRESS = {
    "objects": "list what was accepted",
    "looked": "verify batches",
    "again": "record sequence numbers",
    "around": "list manifests next to these",
    "others": "verify overlapping batches",
    "reported": "report overlaps",
    "listed": "read the listings of hours",
    "written": "list batches in their hours",
}
"""What is shown while the table of this name is made."""

BY_KEY = Spread(by=("key",), worth=200)
BY_SHARD = Spread(by=("shard",), worth=50_000, order=("agent", "boot", "seq_start"))
BY_BOOT = Spread(by=("agent", "boot"), worth=1_000, order=("seq_start", "seq_end"))
BY_HOUR = Spread(by=("hour",), worth=50_000, order=("listing", "manifest_id"))
WANTED = "SELECT key FROM found UNION SELECT key FROM retried"


class Reconcile:
    """The job. A run by position takes one slice; ``more`` in its summary says that there is another."""

    name = "reconcile"
    version = "2"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._ambient, self._options = env.store, env.ambient, env.options
        self._checkpoints = Checkpoints(env.store, env.ambient)
        self._rule = Rule()

    async def is_due(self) -> bool:
        """Whether there is anything to do. If not, the checkpoint advances at once."""
        if (await problems.broken(self._store)).keys:
            return True
        before = await self._checkpoints.read()
        position = await read_position(self._store, before)
        if position is None:
            return await self._has_anything(before)
        now_ns = self._ambient.clock.wall_ns()
        deep = self._wants_deep(before, position, now_ns)
        found = await scan(self._store, self._ambient.clock, self._rule, position, deep=deep, limit=MOST_WAITING)
        if found.end.more:
            return True
        for start in range(0, len(found.new), AT_ONCE):  # usually the first of them leads to a batch
            resolved = await resolve_all(self._store, found.new[start : start + AT_ONCE])
            if resolved.batches or resolved.unreadable:
                return True
        end = found.end.without(each.id for each in found.new)
        await self._checkpoints.advance(self._ambient.ids.unique(), self._to(before, end, now_ns, deep))
        return False

    async def _has_anything(self, before: Checkpoint | None) -> bool:
        """Whether a first scan has anything to read. If not, it is complete."""
        from_ns, began_ns, store_ns = await self._begin_scan()
        for prefix in (ingest.ACCEPTED, ingest.CONFLICTS):
            async for _ in self._store.keys(prefix):
                return True
        to = self._to(before, Position.at(from_ns), began_ns, deep=True)
        await self._checkpoints.advance(self._ambient.ids.unique(), replace(to, full_at_unix_ns=store_ns))
        return False

    async def split(self, request: Document) -> list[Document]:
        """Runs follow each other until nothing is left."""
        return [request]

    async def run(self, ctx: Steps, request: Document) -> Document:
        plan = await ctx.step("plan", self._plan, request, ctx.run_id)
        listed = await ctx.step("list", self._list, plan, ctx.run_id)
        published = await ctx.step("publish", self._publish, plan, listed, ctx.run_id)
        await ctx.step("verify", self._verify, listed, ctx.run_id)
        return {**listed["counts"], **published, "more": plan["more"]}

    async def preview(self, request: Document) -> int:
        """How many keys a run would read. Writes nothing."""
        before = await self._checkpoints.read()
        position = await read_position(self._store, before)
        keys = len((await problems.broken(self._store)).keys)
        if request.get("keys") is not None:
            return keys + len(set(request["keys"]))
        if _by_position(request) and position is not None:
            deep = self._wants_deep(before, position, self._ambient.clock.wall_ns())
            return keys + len((await scan(self._store, self._ambient.clock, self._rule, position, deep=deep)).new)
        for span in self._spans(request):
            async for page in entries(self._store, span):
                keys += len(page)
        return keys

    async def explain(self, request: Document) -> list[Step]:
        """The relational steps as the engine would run them. Reads nothing, and writes nothing."""
        async with relations(self._store, self._env.engine, "explain", self._watch) as work:
            for name, schema in TABLES.items():
                work.declare(name, schema)
            define(work)
            return [
                Step("found", "list references since the last run, or all manifests"),
                await work.explain("looked", "verify each of these and write its missing references", WANTED),
                await work.explain("again", "cover the numbers of these", "SELECT * FROM numbered"),
                await work.explain("around", "list the manifests next to these", "SELECT * FROM known"),
                await work.explain("others", "verify what overlaps and was not found", "SELECT * FROM unseen"),
                await work.explain("listed", "read what these hours list", "SELECT * FROM hours_again"),
                await work.explain(
                    "written", "list these in their hours, and mark the hours", "SELECT * FROM unlisted"
                ),
            ]

    # --- plan ---

    async def _plan(self, request: Document, run_id: str) -> Document:
        """The keys to verify: staged, so that a resumed run has the same ones."""
        before = await self._checkpoints.read()
        position = await read_position(self._store, before)
        retried = await problems.broken(self._store, None if before is None else before.broken_after)
        to, ids, from_ns, more = None, frozenset[bytes](), None, False
        async with relations(self._store, self._env.engine, run_id, self._watch) as work:
            if request.get("keys") is not None:
                keys = listed = await self._put(work, "found", list(dict.fromkeys(request["keys"])))
            elif _by_position(request) and position is not None:
                now_ns = self._ambient.clock.wall_ns()
                deep, limit = self._wants_deep(before, position, now_ns), self._options.batches_at_once
                looked = await scan(self._store, self._ambient.clock, self._rule, position, deep=deep, limit=limit)
                keys, listed = await self._put(work, "found", [each.full_key for each in looked.new]), looked.count
                to, ids, more = self._to(before, looked.end, now_ns, deep), looked.end.recent, bool(looked.end.more)
            else:
                if position is None and (_by_position(request) or _whole(request)):
                    from_ns, began_ns, store_ns = await self._begin_scan()
                    to = self._to(before, Position.at(from_ns), began_ns, deep=True)
                    to = replace(to, full_at_unix_ns=store_ns)
                keys = listed = (await work.scan("objects", ObjectsTable(self._spans(request)))).rows
            keys += await self._put(work, "retried", retried.keys)
        return {
            "keys": keys,
            "scanned": not keys or (request.get("keys") is None and (position is None or not _by_position(request))),
            "retried": len(retried.keys),
            "listed": listed,
            "checkpoint": None if to is None else asdict(replace(to, broken_after=retried.last)),
            "recent": None if to is None else await self._checkpoints.write_recent(ids),
            "from_ns": from_ns,
            "more": more,
            "full_at_unix_ns": request.get("began_ns") if _whole(request) and to is None else None,
        }

    async def _put(self, work: Relations, name: str, keys: Sequence[str]) -> int:
        return (await work.put(name, KEYS, _batch(keys))).rows if keys else 0

    def _spans(self, request: Document) -> tuple[Span, ...]:
        """The keys that a request names: references of a range of time, or manifests and conflicts, of some agents or
        all."""
        if request.get("since_ns") is not None or request.get("until_ns") is not None:
            since_ns = request.get("since_ns") or 0
            until_ns = request.get("until_ns") or self._ambient.clock.wall_ns()
            return (referred(since_ns, until_ns),)
        agents = [f"agent={agent.encode().hex()}/" for agent in sorted(set(request.get("agents") or ()))] or [""]
        return tuple(Span(f"{prefix}{agent}") for prefix in (ingest.ACCEPTED, ingest.CONFLICTS) for agent in agents)

    async def _begin_scan(self) -> tuple[int, int, int]:
        """When a first scan begins, by the store's clock and by this machine's. If the scan misses a manifest because
        it is written later, a reference from before the scan is too old to count.
        """
        store_ns = await self._checkpoints.store_now()
        return max(0, store_ns - self._rule.horizon_ns), self._ambient.clock.wall_ns(), store_ns

    def _to(self, before: Checkpoint | None, end: Position, now_ns: int, deep: bool) -> Checkpoint:
        """The checkpoint at the end of a look that began at ``now_ns``. It has the ids of ``before``; the caller adds
        those of the look, if any.
        """
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

    # --- verify, cover, list ---

    def _watch(self, step: str) -> Any:
        return self._env.progress(f"reconcile: {PROGRESS.get(step, step)}")

    async def _list(self, plan: Document, run_id: str) -> Document:
        if not plan["keys"]:
            counts = {**dict.fromkeys(COUNTED, 0), "listed": plan["listed"]}
            return {"counts": counts, "listings": [], "waiting": [], "given": []}
        verify = Verify(self._options.limits, plan["from_ns"])
        async with relations(self._store, self._env.engine, run_id, self._watch) as work:
            await self._bind(work, plan)
            define(work)
            await work.map("looked", WANTED, verify, BY_KEY)
            await work.map("again", "SELECT * FROM numbered", Cover(run_id), BY_SHARD)
            await self._overlaps(work, verify)
            await work.map("written", "SELECT * FROM unlisted", WriteListings(), BY_HOUR)
            (counted,) = await work.rows(COUNTS)
            listings = await work.rows("SELECT hour, key FROM written ORDER BY hour, key")
            if plan["retried"]:
                await self._mend(await work.rows(MENDED), run_id)
            waiting, given = await self._references(work, plan) if plan["checkpoint"] is not None else ([], [])
        counts = {**{name: int(counted[name] or 0) for name in COUNTED}, "listed": plan["listed"]}
        return {
            "counts": counts,
            "listings": [[row["hour"], row["key"]] for row in listings],
            "waiting": waiting,
            "given": given,
        }

    async def _bind(self, work: Relations, plan: Document) -> None:
        """The tables of the plan. Tables without rows were not staged."""
        if plan["scanned"] and plan["listed"]:
            await work.bind("objects", OBJECTS)
            work.view("found", "SELECT key FROM objects")
        elif plan["keys"] > plan["retried"]:
            await work.bind("found", KEYS)
        else:
            work.empty("found", KEYS)
        if plan["retried"]:
            await work.bind("retried", KEYS)
        else:
            work.empty("retried", KEYS)

    async def _references(self, work: Relations, plan: Document) -> tuple[list[str], list[str]]:
        """Ids of references that led to no batch, and of those that a first scan has covered or written. Above the
        limit of the latter, the next runs verify their batches once more.
        """
        given = f"SELECT key, reference FROM looked WHERE reference IS NOT NULL LIMIT {MOST_GIVEN}"
        waiting = "SELECT key, CAST(NULL AS STRING) FROM looked WHERE waiting"
        rows = await work.rows(f"({given}) UNION ALL {waiting}", most=plan["keys"] + MOST_GIVEN)
        led_nowhere = [reference_id(row["key"]).hex() for row in rows if row["reference"] is None]
        return led_nowhere, [row["reference"] for row in rows if row["reference"] is not None]

    async def _overlaps(self, work: Relations, verify: Verify) -> None:
        """Batches that share numbers with those of this run, and the existing listings of their hours. In most runs
        there are none, and no kernel is run.
        """
        await work.map("around", "SELECT * FROM known", Around(), BY_BOOT)
        await work.map("others", "SELECT * FROM unseen", verify, BY_KEY)
        await work.map("reported", "SELECT * FROM doubled", ReportOverlaps(), BY_KEY)
        await work.map("listed", "SELECT * FROM hours_again", ReadListings(), Spread(by=("hour",), worth=10))

    async def _mend(self, rows: Iterable[Document], run_id: str) -> None:
        """These batches were unreadable before and can be read now. Units may have been made without them, so their
        hours are due."""
        hours = {(row["key"], row["hour"]) for row in rows}
        for key, hour in sorted((key, hour) for key, hour in hours if hour is not None):
            ident = hashlib.sha256(f"{run_id}\x00{key}".encode()).hexdigest()
            await due.mark(self._store, self._ambient, Kind.ROLLUP, hour, ident)
        await problems.mended(self._store, sorted({key for key, _ in hours}))

    # --- publish and verify ---

    async def _publish(self, plan: Document, listed: Document, run_id: str) -> Document:
        """Publish an event for each listing, then move the checkpoint."""
        bus = Bus(self._store, self._ambient, NAMESPACE)
        for hour, key in listed["listings"]:
            payload = {"hour": hour_name(hour), "listing": key}
            await bus.publish_raw(HOUR_CHANGED, payload, key=key)
        if plan["checkpoint"] is not None:
            stands = await self._checkpoints.advance(run_id, await self._reached(plan, listed))
            await self._checkpoints.drop_recent(stands.recent)
        if plan["full_at_unix_ns"] is not None:
            await self._checkpoints.scanned(run_id, plan["full_at_unix_ns"])
        return {"hours": sorted({hour_name(hour) for hour, _ in listed["listings"]})}

    async def _reached(self, plan: Document, listed: Document) -> Checkpoint:
        """References that led to no batch do not count as returned: the next look reads them again. References of
        batches that a first scan has found do: no look needs to find them again.
        """
        recent = plan["recent"]
        waiting, given = ({bytes.fromhex(each) for each in listed[name]} for name in ("waiting", "given"))
        if waiting or given:
            recent = await self._checkpoints.write_recent(await read_ids(self._store, recent) - waiting | given)
        return replace(Checkpoint(**plan["checkpoint"]), recent=recent)

    async def _verify(self, listed: Document, run_id: str) -> Document:
        """Check that the listings which were written exist."""
        keys = [key for _, key in listed["listings"]]
        await map_bounded(keys, self._store.head, limit=AT_ONCE)
        await staged.remove(self._store, run_id)
        return {"listings": len(keys)}


# --- the SQL ---

OWN = ", ".join(name for name, _ in BATCH)
BY_NUMBER = "PARTITION BY agent, boot ORDER BY seq_start, seq_end, manifest_id"
COUNTED = (
    "looked_at",
    "batches",
    "records",
    "read_bytes",
    "references_written",
    "expired",
    "broken",
    "overlaps",
    "problems",
)
COUNTS = """
    SELECT looked_at, batches, records, read_bytes, references_written, expired, overlapped AS overlaps,
        broken + uncovered AS broken, problems + overlapped + uncovered AS problems
    FROM (
        SELECT
            sum(CASE WHEN place = 0 THEN 1 ELSE 0 END) AS looked_at,
            sum(CASE WHEN place = 0 AND manifest_id IS NOT NULL AND NOT expired THEN 1 ELSE 0 END) AS batches,
            sum(records) AS records,
            sum(read_bytes) AS read_bytes,
            sum(wrote) AS references_written,
            sum(CASE WHEN expired THEN 1 ELSE 0 END) AS expired,
            sum(CASE WHEN broken THEN 1 ELSE 0 END) AS broken,
            sum(problems) AS problems,
            (SELECT count(*) FROM reported) AS overlapped,
            (SELECT count(*) FROM uncovered) AS uncovered
        FROM looked
    ) AS counted"""
MENDED = "SELECT DISTINCT retried.key, batches.hour FROM retried JOIN batches ON batches.key = retried.key"


def define(work: Relations) -> None:
    """Tables: found, retried; looked, again, around, others, listed once they are staged."""
    work.view("numbered", "SELECT DISTINCT shard, agent, boot, seq_start, seq_end FROM looked WHERE shard IS NOT NULL")
    work.view("uncovered", "SELECT manifest_id FROM again WHERE failed")
    work.view("known", "SELECT * FROM again WHERE NOT failed")
    work.view(
        "batches",
        "SELECT looked.* FROM looked ANTI JOIN uncovered ON looked.manifest_id = uncovered.manifest_id "
        "WHERE looked.manifest_id IS NOT NULL",
    )
    # A batch overlaps an earlier one if its range begins before the end of any of them, and a later one if the next
    # begins before its own end.
    work.view(
        "overlapping",
        f"""
        SELECT * FROM (
            SELECT *, max(seq_end) OVER ({BY_NUMBER} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached,
                lead(seq_start) OVER ({BY_NUMBER}) AS following
            FROM (SELECT DISTINCT * FROM around) AS each_once
        ) AS in_order WHERE reached >= seq_start OR following <= seq_end""",
    )
    work.view(
        "pairs",
        """
        SELECT one.manifest_id, one.key, one.agent, one.boot, one.seq_start, one.seq_end,
            other.manifest_id AS other_id, other.key AS other_key, other.seq_start AS low, other.seq_end AS high
        FROM overlapping AS one JOIN overlapping AS other
            ON one.agent = other.agent AND one.boot = other.boot
            AND one.seq_start <= other.seq_end AND other.seq_start <= one.seq_end
            AND one.manifest_id <> other.manifest_id
        JOIN known ON known.manifest_id = one.manifest_id""",
    )
    work.view(
        "doubled",
        """
        SELECT key, agent, boot, seq_start, seq_end, count(*) AS others, min(low) AS low, max(high) AS high
        FROM pairs GROUP BY key, agent, boot, seq_start, seq_end""",
    )
    work.view(
        "unseen",
        "SELECT DISTINCT pairs.other_key AS key FROM pairs ANTI JOIN batches ON pairs.other_id = batches.manifest_id",
    )
    # A batch has a row for each of its hours; one that was found on either side has equal rows, of which one counts.
    share = "records, first_ns, last_ns"
    work.view(
        "everything",
        f"""
        SELECT hour, {OWN}, {share} FROM batches
        UNION ALL
        SELECT hour, {OWN}, {share} FROM others WHERE manifest_id IS NOT NULL""",
    )
    work.view(
        "linked",
        "SELECT manifest_id, other_id FROM pairs UNION SELECT other_id AS manifest_id, manifest_id AS other_id "
        "FROM pairs",
    )
    # An overlapping batch is listed in the hours of both: deriving an hour needs every batch that shares its numbers.
    # The other batch may be one that no run has found yet.
    own = ", ".join(f"one.{name}" for name, _ in BATCH)
    work.view(
        "entries",
        f"""
        SELECT hour, {OWN}, max(records) AS records, max(first_ns) AS first_ns, max(last_ns) AS last_ns
        FROM (
            SELECT hour, {OWN}, {share} FROM everything
            UNION ALL
            SELECT other.hour, {own}, 0 AS records, CAST(NULL AS BIGINT) AS first_ns, CAST(NULL AS BIGINT) AS last_ns
            FROM linked JOIN everything AS one ON one.manifest_id = linked.manifest_id
            JOIN everything AS other ON other.manifest_id = linked.other_id
        ) AS both_of WHERE hour IS NOT NULL GROUP BY hour, {OWN}""",
    )
    # Only batches that were covered before can be listed already.
    work.view(
        "hours_again",
        "SELECT DISTINCT entries.hour FROM entries JOIN known ON entries.manifest_id = known.manifest_id",
    )
    work.view("held", "SELECT hour, manifest_id, max(records) AS records FROM listed GROUP BY hour, manifest_id")
    work.view(
        "unlisted",
        """
        SELECT entries.*, CAST(NULL AS STRING) AS listing FROM entries
        LEFT JOIN held ON held.hour = entries.hour AND held.manifest_id = entries.manifest_id
        WHERE held.records IS NULL OR held.records < entries.records
        UNION ALL
        SELECT DISTINCT listed.hour, {nothing}, listed.listing FROM listed
        JOIN entries ON entries.hour = listed.hour AND entries.manifest_id = listed.manifest_id""".replace(
            "{nothing}", ", ".join("NULL" for _ in range(len(BATCH) + 3))
        ),
    )


async def _batch(keys: Sequence[str]) -> AsyncIterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], schema=KEYS)


def _whole(request: Document) -> bool:
    return bool(request.get("full")) and not request.get("agents")


def _by_position(request: Document) -> bool:
    """Whether a run continues where the last one ended."""
    return not request.get("full") and all(request.get(each) is None for each in ("keys", "since_ns", "until_ns"))
