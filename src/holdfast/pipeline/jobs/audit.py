"""Audit: everything in the store against everything else. The job ``audit``, which runs when it is named.

    objects    := scan(listings of the scopes)                       key, size, modified_ns; all that the SQL knows
    claims     := map(manifests among the objects, Claims)           what each manifest says must be there
    suspects   := claims ANTI JOIN objects, objects ANTI JOIN claims, lengths that differ, and the sample
    findings   := map(suspects, runs, events, days, ..., Judge)      each checked by reading the objects themselves

Existence is settled by listings and two anti-joins, without a request for each reference; what does not fit is checked
object by object, twice. Everything is listed after the audit's moment (``through``) was fixed by the store's own clock,
and only objects that were last modified before it are judged, so what is under way is no finding.

Steps: *plan*, *check* (the relational part, staged, so that the next driver continues with it), *publish*, *verify*. It
writes nothing but its own record, and staged tables, which it removes.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.base import codec
from holdfast.base.audit import WEIGHT, Finding, Severity, rules
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Invalid, check
from holdfast.bus import layout as bus
from holdfast.objects.client import START_CHECK_PREFIX, Client
from holdfast.objects.store import CREATE, Store
from holdfast.ontology.format import layout as ontology
from holdfast.pipeline import layout
from holdfast.pipeline import reports as sources
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.engine import staged
from holdfast.pipeline.engine.protocol import Spread
from holdfast.pipeline.engine.relations import Relations, Step, relations
from holdfast.pipeline.job import PREFIX, Steps
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.audit_checks import CLAIMS, FINDINGS, Claims, Judge, Order, WriteLists, days
from holdfast.pipeline.jobs.audited import INVENTORY, KEPT, SCAN, Audited, Scope
from holdfast.pipeline.options import Env
from holdfast.pipeline.tables.objects import OBJECTS, ObjectsTable
from holdfast.runs import layout as runs
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept.audit import REFERENCES
from holdfast.telemetry.discover import LATE_NS
from holdfast.telemetry.rollup import layout as metrics
from holdfast.telemetry.rollup.audit import RULES as DERIVED

ONE_IN = 64
"""The bytes of one blob or chunk in this many are read, unless the audit is a deep one."""
BLINDING = {
    Scope.INGEST: ("corrupt_manifest", "unknown_schema", "corrupt_conflict"),
    Scope.ONTOLOGY: (
        "ontology_head_unreadable",
        "ontology_head_missing",
        "ontology_manifest_missing",
        "ontology_manifest_unreadable",
        "ontology_chain_break",
    ),
}
"""If one of these cannot be read, it is unknown which objects must exist."""
SPARE_NS = 24 * 3600 * 1_000_000_000
"""How old an object must be when a report is made to be certainly in it: reports lag behind."""

MANIFESTS = (ingest.ACCEPTED, ingest.CONFLICTS, ingest.RESOLUTIONS)
NAMED = (*REFERENCES, ingest.BLOBS)
"""Prefixes in which every object must belong to some manifest."""
PREFIXES: Mapping[str, tuple[str, ...]] = {
    Scope.INGEST: (*MANIFESTS, *NAMED, ingest.EXPIRED),
    Scope.RUNS: (runs.ROOT, runs.INDEX_OPEN, runs.INDEX_DONE),
    Scope.BUS: (bus.EVENTS, bus.CLAIMS, bus.DEAD_LETTERS),
}
KEYS = pa.schema([("key", pa.string())])
SUBJECTS = pa.schema([("space", pa.string()), ("part", pa.string())])
TABLES = {"reported": KEYS, "objects": OBJECTS, "subjects": SUBJECTS, "claims": CLAIMS, "findings": FINDINGS}
"""The staged tables, in this order."""
DAY_WORK = 500
"""The work of checking a day, or the ontology, as a number of checks of one object."""
MANIFESTS_READ = "SELECT key FROM manifests"
CHOSEN = "SELECT * FROM chosen"
BY_KEY = Spread(by=("key",), worth=2_000)
BY_PART = Spread(by=("space", "part"), worth=500, order=("key",), work="work")


RULES = rules(
    Severity.INFORMATION,
    unknown_prefix=(
        "objects of another program beside ours",
        "an object that is not Holdfast's: nothing to do if it is your own",
    ),
)

OURS = (
    *(ingest.ACCEPTED, ingest.ACCEPTED_BY_TIME, ingest.ACCEPTED_BY_BLOB, ingest.BLOBS, ingest.BLOBS_BY_TIME),
    *(ingest.CONFLICTS, ingest.CONFLICTS_BY_BLOB, ingest.EXPIRED, ingest.PROBES),
    *(metrics.ROLLUP, metrics.INDEX, metrics.MANIFESTS, metrics.BATCHES_BY_HOUR),
    *(ontology.COMMITS, ontology.SNAPSHOTS, ontology.INDICES),
    *(runs.ROOT, runs.INDEX),
    *(bus.EVENTS, bus.CLAIMS, bus.DEAD_LETTERS, bus.SESSIONS, bus.BUS),
)
ROOTS = frozenset(prefix.partition("/")[0] for prefix in OURS)
"""The prefixes of Holdfast's own objects."""


class Audit:
    name = "audit"
    version = "2"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._options = env.store, env.options

    async def is_due(self) -> bool:
        return True

    async def split(self, request: Document) -> list[Document]:
        return [request]

    async def run(self, ctx: Steps, request: Document) -> Document:
        plan = await ctx.step("plan", self._plan, request, ctx.run_id)
        found = await ctx.step("check", self._check, plan)
        published = await ctx.step("publish", self._publish, plan, found)
        await ctx.step("verify", self._verify, plan, published)
        return dict(published)

    async def explain(self, request: Document) -> list[Step]:
        """The relational steps as the engine would run them. Reads nothing, and writes nothing."""
        scopes = check_scopes(request.get("scopes") or ())
        prefixes = [prefix for scope in scopes for prefix in PREFIXES.get(scope, ())]
        async with relations(self._store, self._env.engine, "explain", self._watch) as work:
            for name, schema in TABLES.items():
                work.declare(name, schema)
            define(work, self._env.ambient.clock.wall_ns() - self._options.overlap_ns)
            return [
                Step("objects", f"list {', '.join(prefixes) or 'nothing'}"),
                await work.explain("claims", "read each of these manifests: what must be there", MANIFESTS_READ),
                await work.explain("findings", "check each of these; work is about its requests", CHOSEN),
                await work.explain("record", "publish the first findings of each rule", "SELECT * FROM kept"),
            ]

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
        found = [each async for each in strangers(self._store)]
        found += reconciled.findings if Scope.METRICS in scopes else ()
        await staged.sweep(self._store, now_ns)
        return {
            "order": self._order(audit_id, request, through_ns, reconciled.ns).document(),
            "run_id": run_id,
            "scopes": scopes,
            "inventory": inventory,
            "began_ns": began_ns,
            "cursor_ns": reconciled.cursor_ns,
            "findings": [finding.document() for finding in found],
        }

    async def _store_now(self, audit_id: str) -> int:
        """The time of the store's own clock, read from an object that was just written."""
        key = audited.began_key(audit_id)
        body = codec.encode({"audit_id": audit_id, "write_id": self._env.ambient.ids.write_id()})
        await self._store.put(key, body, CREATE)
        return (await self._store.head(key)).modified_ns

    async def _reconciled(self, now_ns: int) -> "_Reconciled":
        """How far the reconciler is, and whether its checkpoint is possible."""
        try:
            found = await Checkpoints(self._store, self._env.ambient).read()
        except Corrupt as error:
            return _Reconciled(findings=[Finding(DERIVED["corrupt_checkpoint"], layout.CHECKPOINT, str(error))])
        if found is None:
            return _Reconciled()
        if found.newest_ns > now_ns:
            detail = "its cursor is later than the store's own clock"
            return _Reconciled(findings=[Finding(DERIVED["checkpoint_ahead"], layout.CHECKPOINT, detail)])
        # References that come later than a day after their batch are left to the full scan, which is a repair.
        by_now_ns = min(found.through_unix_ns, now_ns) - LATE_NS
        return _Reconciled(max(found.newest_ns, by_now_ns) - self._options.overlap_ns, found.newest_ns)

    def _order(self, audit_id: str, request: Document, through_ns: int, reconciled_ns: int) -> Order:
        limits = self._options.limits
        bounds = (limits.frame_bytes, limits.payload_bytes, limits.records, limits.elements)
        one_in = 1 if request.get("deep") else request.get("one_in") or ONE_IN
        return Order(audit_id, through_ns, one_in, reconciled_ns, self._options.windows.names, bounds)

    # --- check ---

    async def _check(self, plan: Document) -> Document:
        order = Order.of(plan["order"])
        async with relations(self._store, self._env.engine, plan["run_id"], self._watch) as work:
            await self._snapshot(work, plan)
            define(work, order.through_ns)
            await work.map("claims", MANIFESTS_READ, Claims(order), BY_KEY)
            await work.map("findings", CHOSEN, Judge(order), BY_PART)
            counts = await work.rows("SELECT rule, count(*) AS n FROM findings WHERE rule IS NOT NULL GROUP BY rule")
            lists: list[Document] = []
            if any(row["n"] > KEPT for row in counts):
                ordered = Spread(by=("weight", "rule"), worth=100_000, order=("key",))
                await work.map("lists", "SELECT * FROM broken", WriteLists(order.audit_id), ordered)
                lists = await work.rows("SELECT key FROM lists ORDER BY key")
            (latest,) = await work.rows("SELECT max(modified_ns) AS at_ns FROM by_time")
            return {
                "checked": {row["checked"]: int(row["n"]) for row in await work.rows("SELECT * FROM counted")},
                "found": {row["rule"]: int(row["n"]) for row in counts},
                "kept": await work.rows("SELECT rule, severity, key, message, remedy FROM kept"),
                "lists": [row["key"] for row in lists],
                "latest_reference_ns": latest["at_ns"],
            }

    def _watch(self, step: str) -> Any:
        return self._env.progress(f"audit: {step}")

    async def _snapshot(self, work: Relations, plan: Document) -> None:
        """The prefixes to list, each once. With a report the manifests are not listed."""
        prefixes = [prefix for scope in plan["scopes"] for prefix in PREFIXES.get(scope, ())]
        by_report = plan["inventory"] is not None and Scope.INGEST in plan["scopes"]
        if by_report:
            prefixes = [prefix for prefix in prefixes if prefix not in (ingest.ACCEPTED, ingest.CONFLICTS)]
        await work.put("reported", KEYS, self._reported(plan["inventory"] if by_report else None))
        await work.scan("objects", ObjectsTable(tuple(prefixes)))
        await work.put("subjects", SUBJECTS, self._subjects(plan["scopes"]))

    async def _reported(self, location: str | None) -> AsyncIterator[pa.RecordBatch]:
        if location is None:
            return
        prefix, bucket = self._place()
        async for keys in sources.inventory_keys(location, prefix, self._options.settings, bucket):
            yield pa.RecordBatch.from_pylist([{"key": key} for key in keys], KEYS)

    def _place(self) -> tuple[str, str | None]:
        """The prefix of the store, and its bucket."""
        if not isinstance(self._store, Client):
            return "", None
        return self._store.spec.prefix, sources.bucket_of(self._store.spec)

    async def _subjects(self, scopes: Sequence[str]) -> AsyncIterator[pa.RecordBatch]:
        """The parts that are checked as a whole: days of derived data, namespaces of events, the ontology."""
        found = [("day", day) for day in await days(self._store)] if Scope.METRICS in scopes else []
        if Scope.BUS in scopes:
            found += [("namespace", each) for each in await namespaces(self._store)]
        if Scope.ONTOLOGY in scopes and await has_ontology(self._store):
            found.append(("ontology", ""))
        yield pa.RecordBatch.from_pylist([{"space": space, "part": part} for space, part in found], SUBJECTS)

    # --- publish and verify ---

    async def _publish(self, plan: Document, found: Document) -> Document:
        order = Order.of(plan["order"])
        planned: list[Document] = list(plan["findings"])
        latest_ns = found["latest_reference_ns"]
        if latest_ns is not None and plan["cursor_ns"] > latest_ns:
            detail = "its cursor is later than the latest reference by time"
            planned.append(Finding(DERIVED["checkpoint_ahead"], layout.CHECKPOINT, detail).document())
        counts = Counter(found["found"]) + Counter(each["rule"] for each in planned)
        record = Audited(
            order.audit_id,
            plan["run_id"],
            tuple(plan["scopes"]),
            SCAN if plan["inventory"] is None else INVENTORY,
            order.one_in,
            plan["began_ns"],
            self._env.ambient.clock.wall_ns(),
            order.through_ns,
            {name: count for name, count in sorted(found["checked"].items()) if count},
            dict(sorted(counts.items())),
            tuple(first_of_each([*planned, *found["kept"]])),
            tuple(found["lists"]),
            {scope: why for scope, why in blind(counts) if scope in plan["scopes"]},
        )
        await self._store.put(record.key, record.encode(self._env.ambient.ids.write_id()), CREATE)
        return {
            "audit_id": record.audit_id,
            "good": record.good,
            "problems": record.errors,
            "batches": record.checked.get("accepted", 0),
            "through_unix_ns": record.through_unix_ns,
        }

    async def _verify(self, plan: Document, published: Document) -> Document:
        found = await audited.read(self._store, published["audit_id"])
        check(found.audit_id == published["audit_id"], f"{found.key}: not the record that was written")
        await staged.remove(self._store, plan["run_id"])
        return {"key": found.key}


def define(work: Relations, through_ns: int) -> None:
    """The SQL of an audit. Tables: objects, reported, subjects; claims and findings once they are staged."""
    work.view("judged", f"SELECT * FROM objects WHERE modified_ns < {through_ns:d}")
    work.view(
        "manifests",
        f"SELECT key FROM judged WHERE {below(*MANIFESTS)} UNION SELECT key FROM reported WHERE {below(*MANIFESTS)}",
    )
    work.view("absent", "SELECT source, unless FROM claims ANTI JOIN objects ON claims.target = objects.key")
    work.view("unexcused", "SELECT source FROM absent ANTI JOIN objects ON absent.unless = objects.key")
    work.view(
        "altered",
        "SELECT source FROM claims JOIN objects ON claims.target = objects.key WHERE claims.bytes <> objects.size",
    )
    work.view(
        "unclaimed",
        f"SELECT key FROM (SELECT key FROM judged WHERE {below(*NAMED)}) AS named "
        "ANTI JOIN claims ON named.key = claims.target",
    )
    work.view(
        "suspects",
        "SELECT source AS key FROM unexcused UNION SELECT source FROM altered UNION SELECT key FROM unclaimed",
    )
    work.view(
        "chosen",
        f"""
        SELECT 'accepted' AS space, key AS part, key, 0 AS size, 0 AS modified_ns, 5 AS work FROM suspects
        UNION ALL
        SELECT 'run', split_part(key, '/', 2), key, size, modified_ns, 1 FROM objects WHERE {below(runs.ROOT)}
        UNION ALL
        SELECT 'run index', key, key, size, modified_ns, 1 FROM judged WHERE {below(runs.INDEX_OPEN, runs.INDEX_DONE)}
        UNION ALL
        SELECT 'event', key, key, size, modified_ns, 2 FROM judged WHERE {below(*PREFIXES[Scope.BUS])}
        UNION ALL
        SELECT space, part, '', 0, 0, {DAY_WORK} FROM subjects""",
    )
    work.view("by_time", f"SELECT * FROM objects WHERE {below(ingest.ACCEPTED_BY_TIME)}")
    work.view("broken", "SELECT rule, severity, key, message, remedy, weight FROM findings WHERE rule IS NOT NULL")
    work.view(
        "kept",
        f"""
        SELECT * FROM (
            SELECT *, row_number() OVER (PARTITION BY rule ORDER BY key) AS place FROM broken
        ) AS numbered WHERE place <= {KEPT}""",
    )
    work.view("counted", counted_text())


def counted_text() -> str:
    """The numbers of checked objects by kind: from the checks, and from the joins."""
    references = {f"{kind} references": prefix for prefix, kind in REFERENCES.items()}
    parts = ["SELECT checked, sum(n) AS n FROM findings WHERE checked IS NOT NULL GROUP BY checked"]
    parts += [
        f"SELECT '{name}' AS checked, count(*) AS n FROM judged WHERE {below(prefix)}"
        for name, prefix in ({"blobs": ingest.BLOBS} | references).items()
    ]
    parts.append(f"SELECT 'accepted', count(DISTINCT source) FROM claims WHERE source LIKE '{ingest.ACCEPTED}agent=%'")
    parts.append(
        "SELECT 'references', count(*) FROM claims JOIN objects ON claims.target = objects.key "
        f"WHERE {below(*REFERENCES, column='claims.target')}"
    )
    parts.append("SELECT 'expired', count(DISTINCT source) FROM absent JOIN objects ON absent.unless = objects.key")
    return "\nUNION ALL\n".join(parts)


def below(*prefixes: str, column: str = "key") -> str:
    """A condition: the key is under one of these prefixes."""
    return "(" + " OR ".join(f"{column} LIKE '{prefix}%'" for prefix in prefixes) + ")"


async def strangers(store: Store) -> AsyncIterator[Finding]:
    """Names at the root of the store that are not Holdfast's. One LIST per thousand names."""
    async for page in store.list("", delimiter=True):
        for name in (*page.folders, *(entry.key for entry in page.entries)):
            if name.rstrip("/") not in ROOTS and not name.startswith(START_CHECK_PREFIX):
                yield Finding(RULES["unknown_prefix"], name, "nothing of Holdfast has such a name")


async def namespaces(store: Store) -> list[str]:
    found: set[str] = set()
    for prefix in (bus.EVENTS, bus.CLAIMS, bus.DEAD_LETTERS, bus.BUS):
        async for page in store.list(prefix, delimiter=True):
            found |= {folder.removeprefix(prefix).rstrip("/") for folder in page.folders}
    return sorted(found)


async def has_ontology(store: Store) -> bool:
    if await store.find(ontology.HEAD) is not None:
        return True
    for prefix in (ontology.COMMITS, ontology.LOADS):  # a head that was lost, a first load that was killed
        async for page in store.list(prefix, delimiter=True):
            if page.folders or page.entries:
                return True
    return False


def first_of_each(findings: Iterable[Document]) -> list[Document]:
    """The first findings of each rule, the most severe rules first."""
    weight = {str(severity): number for severity, number in WEIGHT.items()}
    ordered = sorted(findings, key=lambda each: (weight[each["severity"]], each["rule"], each["key"]))
    kept: dict[str, list[Document]] = {}
    for each in ordered:
        own = kept.setdefault(str(each["rule"]), [])
        if len(own) < KEPT:
            own.append(each)
    return [each for own in kept.values() for each in own]


def blind(found: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    """Scopes in which an object that decides about others could not be read: the audit proves nothing about them."""
    for scope, blinding in BLINDING.items():
        seen = {rule: found[rule] for rule in blinding if found.get(rule)}
        if seen:
            yield scope, ", ".join(f"{count} {rule}" for rule, count in seen.items())


@dataclass(frozen=True)
class _Reconciled:
    ns: int = 0
    """The reconciler has followed all references that the store had before this moment."""
    cursor_ns: int = 0
    findings: Sequence[Finding] = ()


def check_scopes(names: Iterable[str]) -> list[str]:
    """The named scopes, or all."""
    known = [str(scope) for scope in Scope]
    for name in names:
        if name not in known:
            raise Invalid(f"there is nothing called {name!r} to audit", remedy=f"use {', '.join(known)}")
    return [name for name in known if not list(names) or name in names]
