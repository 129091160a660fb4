"""Audit: everything in the store against everything else. The job ``audit``, which runs when it is named.

Steps: *plan* (the moment through which it holds, by the store's own clock, and the spans of keys), *stage* (tasks walk
the spans: first from manifests to what they name, then back from references and blobs, against what the first walk has
counted), *publish* (the record), *verify*. Every wave of tasks is a step of its own, so a driver that is killed leaves
the rest to the next. It writes nothing but its own record.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.audit import Finding, Tally
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Invalid, check
from holdfast.objects.client import Client
from holdfast.objects.store import CREATE, Store
from holdfast.pipeline import audit_hours, audit_ingest, audit_others, audited, layout, sources
from holdfast.pipeline.audit_rules import strangers
from holdfast.pipeline.audit_spans import MOST_CUTS, Span, divided
from holdfast.pipeline.audit_task import Found, Order, audit_task, payload_of
from holdfast.pipeline.audited import INVENTORY, SCAN, Audited, Scope
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.discover import DEEP_NS
from holdfast.pipeline.job import PREFIX, Steps
from holdfast.pipeline.options import Env
from holdfast.pipeline.partition import TURNS
from holdfast.telemetry.rollup.audit_rules import RULES as DERIVED

ONE_IN = 64
"""Of so many blobs and chunks the bytes of one are read, unless all are asked for."""
PARTS = 8
"""Of each prefix, for each task that runs at a time: enough to even out what is heavy, few enough to list."""
BLINDING = {
    Scope.INGEST: ("corrupt_manifest", "unknown_schema", "corrupt_conflict"),
    Scope.ONTOLOGY: (
        "ontology_head_unreadable",
        "ontology_head_missing",
        "ontology_head_without_manifest",
        "ontology_manifest_missing",
        "ontology_manifest_unreadable",
        "ontology_chain_break",
        "ontology_chain_cycle",
    ),
}
"""What a manifest that cannot be read would have named is not known."""
SPARE_NS = 24 * 3600 * 1_000_000_000
"""How long before a report was made an object must have been there to be surely in it: reports lag behind."""


class Audit:
    name = "audit"
    version = "1"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._options = env.store, env.options

    async def is_due(self) -> bool:
        return True

    async def split(self, request: Document) -> list[Document]:
        return [request]

    async def run(self, ctx: Steps, request: Document) -> Document:
        plan = await ctx.step("plan", self._plan, request, ctx.run_id)
        total = Found()
        total.add(plan["found"])
        await self._waves(ctx, plan, "stage", plan["forward"], {}, total)
        if plan["inventory"] is not None:
            await self._inventory(ctx, plan, total)
        await self._waves(ctx, plan, "stage back", plan["back"], total.sums, total)
        published = await ctx.step("publish", self._publish, plan, total)
        await ctx.step("verify", self._verify, published)
        return dict(published)

    # --- plan ---

    async def _plan(self, request: Document, run_id: str) -> Document:
        audit_id = run_id.removeprefix(f"{PREFIX}{self.name}-")
        scopes = check_scopes(request.get("scopes") or ())
        began_ns = self._env.ambient.clock.wall_ns()
        now_ns = await self._store_now(audit_id)
        older_ns = request.get("older_than_ns")
        through_ns = now_ns - (self._options.overlap_ns if older_ns is None else older_ns)
        inventory = request.get("inventory")
        if inventory is not None:
            made_ns = await sources.inventory_made_ns(inventory, self._options.settings, self._place()[1])
            if not made_ns:
                raise Invalid(f"{inventory}: does not say when it was made", remedy="audit without --inventory")
            through_ns = min(through_ns, made_ns - SPARE_NS)
        reconciled = await self._reconciled(now_ns)
        order = self._order(audit_id, request, through_ns, reconciled.ns)
        parts = min(MOST_CUTS, max(1, await self._env.engine.cores()) * TURNS * PARTS)
        forward, back = await plan_spans(self._store, scopes, parts, manifests=inventory is None)
        found = Tally(findings=[each async for each in strangers(self._store)])
        found.findings += reconciled.findings if Scope.METRICS in scopes else ()
        return {
            "order": order.document(),
            "run_id": run_id,
            "scopes": scopes,
            "inventory": inventory,
            "began_ns": began_ns,
            "cursor_ns": reconciled.cursor_ns,
            "found": Found.of(found).document(),
            "forward": [span.document() for span in forward],
            "back": [span.document() for span in back],
        }

    async def _store_now(self, audit_id: str) -> int:
        """What the store's own clock says, from an object that was just made."""
        key = audited.began_key(audit_id)
        body = codec.encode({"audit_id": audit_id, "write_id": self._env.ambient.ids.write_id()})
        await self._store.put(key, body, CREATE)
        return (await self._store.head(key)).modified_ns

    async def _reconciled(self, now_ns: int) -> "_Reconciled":
        """How far the reconciler is, and whether that can be."""
        try:
            found = await Checkpoints(self._store, self._env.ambient).read()
        except Corrupt as error:
            return _Reconciled(findings=[Finding(DERIVED["corrupt_checkpoint"], layout.CHECKPOINT, str(error))])
        if found is None:
            return _Reconciled()
        if found.cursor_ns > now_ns:
            told = "its cursor is later than the store's own clock"
            return _Reconciled(findings=[Finding(DERIVED["checkpoint_ahead"], layout.CHECKPOINT, told)])
        # References that come later than a day after their batch are left to the full scan, which is a repair.
        by_now_ns = min(found.through_unix_ns, now_ns) - DEEP_NS
        return _Reconciled(max(found.cursor_ns, by_now_ns) - self._options.overlap_ns, found.cursor_ns)

    def _order(self, audit_id: str, request: Document, through_ns: int, reconciled_ns: int) -> Order:
        limits = self._options.limits
        bounds = (limits.frame_bytes, limits.payload_bytes, limits.records, limits.elements)
        one_in = 1 if request.get("deep") else request.get("one_in") or ONE_IN
        return Order(audit_id, through_ns, one_in, reconciled_ns, self._options.windows.names, bounds)

    # --- stage ---

    async def _waves(
        self, ctx: Steps, plan: Document, name: str, spans: list[Document], counted: Mapping[str, int], total: Found
    ) -> None:
        number = 0
        while spans:
            number += 1
            wave = await ctx.step(f"{name} {number}", self._wave, plan, spans, dict(counted), f"{name} {number}")
            total.add(wave)
            spans = wave["left"]

    async def _wave(self, plan: Document, spans: list[Document], counted: Mapping[str, int], name: str) -> Document:
        order, cores = Order.of(plan["order"]), await self._env.engine.cores()
        every = [Span.of(each) for each in spans]
        groups = min(len(every), max(1, cores) * TURNS)
        payloads = [
            payload_of(order, every[place::groups], _within(counted, every[place::groups])) for place in range(groups)
        ]
        return await self._run(payloads, name)

    async def _inventory(self, ctx: Steps, plan: Document, total: Found) -> None:
        """Manifests and conflicts that a report names, group by group."""
        prefix, bucket = self._place()
        number = 0
        async for keys in sources.inventory_keys(plan["inventory"], prefix, self._options.settings, bucket):
            number += 1
            total.add(await ctx.step(f"stage inventory {number}", self._named, plan, keys, number))

    def _place(self) -> tuple[str, str | None]:
        """The prefix of the store, and its bucket."""
        if not isinstance(self._store, Client):
            return "", None
        return self._store.spec.prefix, sources.bucket_of(self._store.spec)

    async def _named(self, plan: Document, keys: Sequence[str], number: int) -> Document:
        order, cores = Order.of(plan["order"]), await self._env.engine.cores()
        groups = min(len(keys), max(1, cores) * TURNS)
        payloads = [payload_of(order, (), {}, keys[place::groups]) for place in range(groups)]
        return await self._run(payloads, f"inventory {number}")

    async def _run(self, payloads: list[bytes], name: str) -> Document:
        rows = await self._env.engine.run(f"audit {name}", audit_task, payloads, self._env.progress(f"audit: {name}"))
        found = Found()
        for row in rows:
            found.add(row)
        return {**found.document(), "left": [span for row in rows for span in row["left"]]}

    # --- publish and verify ---

    async def _publish(self, plan: Document, total: Found) -> Document:
        order = Order.of(plan["order"])
        peak = total.peaks.get("reference")
        if peak is not None and plan["cursor_ns"] > peak:
            told = "its cursor is later than the latest reference by time"
            total.enter(Finding(DERIVED["checkpoint_ahead"], layout.CHECKPOINT, told).document())
        record = Audited(
            order.audit_id,
            plan["run_id"],
            tuple(plan["scopes"]),
            SCAN if plan["inventory"] is None else INVENTORY,
            order.one_in,
            plan["began_ns"],
            self._env.ambient.clock.wall_ns(),
            order.through_ns,
            {name: count for name, count in sorted(total.checked.items()) if count},
            dict(sorted(total.found.items())),
            tuple(total.findings()),
            tuple(total.lists),
            {scope: why for scope, why in _blind(total.found) if scope in plan["scopes"]},
        )
        await self._store.put(record.key, record.encode(self._env.ambient.ids.write_id()), CREATE)
        return {
            "audit_id": record.audit_id,
            "good": record.good,
            "problems": record.errors,
            "batches": record.checked.get("accepted", 0),
            "through_unix_ns": record.through_unix_ns,
        }

    async def _verify(self, published: Document) -> Document:
        found = await audited.read(self._store, published["audit_id"])
        check(found.audit_id == published["audit_id"], f"{found.key}: not the record that was written")
        return {"key": found.key}


def _blind(found: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Scopes of which something could not be read that decides about the rest: nobody may conclude from them."""
    for scope, rules in BLINDING.items():
        seen = {rule: found[rule] for rule in rules if found.get(rule)}
        if seen:
            yield scope, ", ".join(f"{count} {rule}" for rule, count in seen.items())


@dataclass(frozen=True)
class _Reconciled:
    ns: int = 0
    """What the store had of references before then was followed."""
    cursor_ns: int = 0
    findings: Sequence[Finding] = ()


def check_scopes(names: Iterable[str]) -> list[str]:
    """The scopes that are meant; all, if none is named."""
    known = [str(scope) for scope in Scope]
    for name in names:
        if name not in known:
            raise Invalid(f"there is nothing called {name!r} to audit", remedy=f"use {', '.join(known)}")
    return [name for name in known if not list(names) or name in names]


async def plan_spans(
    store: Store, scopes: Sequence[str], most: int = MOST_CUTS, *, manifests: bool = True
) -> tuple[list[Span], list[Span]]:
    """What is walked first, and what is walked back, each prefix in ``most`` parts or fewer.

    Without ``manifests`` somebody else names them.
    """
    forward: list[Span] = []
    back: list[Span] = []
    if Scope.INGEST in scopes:
        for space, prefix in audit_ingest.FORWARD.items():
            if manifests or space == audit_ingest.RESOLUTIONS:
                forward += await divided(store, space, prefix, most)
        for space, prefix in audit_ingest.BACK.items():
            # References to blobs are listed with blobs, so those are looked for even where there is none.
            back += await divided(store, space, prefix, most) or [Span(space, prefix)]
    if Scope.METRICS in scopes:
        forward += await audit_hours.days(store)
    for scope, spans in (
        (Scope.RUNS, audit_others.run_spans),
        (Scope.BUS, audit_others.bus_spans),
        (Scope.ONTOLOGY, audit_others.ontology_spans),
    ):
        forward += await spans(store, most) if scope in scopes else []
    return forward, back


def _within(counted: Mapping[str, int], spans: Sequence[Span]) -> dict[str, int]:
    """What a task needs to know of what was counted."""
    wide = [*spans]
    for span in spans:
        if span.space == audit_ingest.BLOBS:
            wide += [span.moved(prefix) for prefix in audit_ingest.ALONGSIDE]
    return {part: count for part, count in counted.items() if any(span.holds(part) for span in wide)}
