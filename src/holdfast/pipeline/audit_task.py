"""A task of an audit: some spans of keys, looked at one after the other; counts and findings come back.

A row is small whatever the span holds: the first findings of each rule stand in it, and where there are more, all of
them go to a list in the store. A task that has looked at enough keys hands back the spans that are left.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.audit import WEIGHT, Finding, Look, Severity, Tally
from holdfast.base.codec import Document
from holdfast.objects.store import OVERWRITE, Entry, Store
from holdfast.pipeline import audit_hours, audit_ingest, audit_others
from holdfast.pipeline.audit_desk import Desk
from holdfast.pipeline.audit_spans import Span
from holdfast.pipeline.audited import KEPT, list_key
from holdfast.telemetry.frame import Limits

Walk = Callable[[Desk, Span], Awaitable[Span | None]]

WALKS: dict[str, Walk] = {
    **dict.fromkeys(audit_ingest.FORWARD, audit_ingest.forward),
    **dict.fromkeys(audit_ingest.BACK, audit_ingest.back),
    audit_hours.DAYS: audit_hours.forward,
    **dict.fromkeys((audit_others.RUNS, audit_others.RUN_INDEX), audit_others.walk_runs),
    **dict.fromkeys(audit_others.OF_BUS, audit_others.walk_bus),
    audit_others.ONTOLOGY: audit_others.walk_ontology,
}


@dataclass(frozen=True)
class Order:
    """What every task of an audit is told."""

    audit_id: str
    through_ns: int
    one_in: int
    reconciled_ns: int
    windows: tuple[str, ...]
    limits: tuple[int, ...]

    def document(self) -> Document:
        return {
            "audit_id": self.audit_id,
            "through_ns": self.through_ns,
            "one_in": self.one_in,
            "reconciled_ns": self.reconciled_ns,
            "windows": list(self.windows),
            "limits": list(self.limits),
        }

    @classmethod
    def of(cls, document: Document) -> "Order":
        plain: Document = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
        return cls(**plain)

    def desk(self, store: Store, counted: Mapping[str, int]) -> Desk:
        look = Look(self.through_ns, self.one_in, self.audit_id)
        return Desk(store, look, Limits(*self.limits), self.reconciled_ns, counted, self.windows)


def payload_of(
    order: Order, spans: Iterable[Span], counted: Mapping[str, int], keys: Sequence[str] | None = None
) -> bytes:
    document = {
        "order": order.document(),
        "spans": [span.document() for span in spans],
        "counted": dict(counted),
        "keys": keys,
    }
    return json.dumps(document).encode()


async def audit_task(store: Store, payload: bytes) -> list[Document]:
    asked = json.loads(payload)
    order = Order.of(asked["order"])
    desk = order.desk(store, asked["counted"])
    left: list[Span] = []
    if asked["keys"] is not None:
        await audit_ingest.named(desk, [Entry(key, 0, 0) for key in asked["keys"]])
    spans = [Span.of(each) for each in asked["spans"]]
    for place, span in enumerate(spans):
        if desk.room <= 0:
            left += spans[place:]
            break
        rest = await WALKS[span.space](desk, span)
        if rest is not None:
            left.append(rest)
    found = Found.of(desk.tally)
    if found.crowded:
        found.lists.append(await _write_list(store, order, payload, desk.tally))
    return [{**found.document(), "left": [span.document() for span in left]}]


async def _write_list(store: Store, order: Order, payload: bytes, tally: Tally) -> str:
    """A task that is run again writes its list again: what it says may be what was true later."""
    key = list_key(order.audit_id, hashlib.sha256(payload).hexdigest()[:32])
    lines = [codec.encode(each.document()) for each in in_order(tally.findings)]
    await store.put(key, b"\n".join(lines) + b"\n", OVERWRITE)
    return key


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: (WEIGHT[each.severity], each.rule.name, each.key))


@dataclass
class Found:
    """What tasks have given, in few words; two of them can be put together."""

    checked: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    kept: dict[str, list[Document]] = field(default_factory=lambda: defaultdict(list))
    """By rule, the first findings."""
    sums: Counter[str] = field(default_factory=Counter)
    peaks: dict[str, int] = field(default_factory=dict)
    lists: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tally: Tally) -> "Found":
        made = cls(Counter(tally.checked), sums=Counter(tally.sums), peaks=dict(tally.peaks))
        for each in in_order(tally.findings):
            made.enter(each.document())
        return made

    def enter(self, finding: Document, count: int = 1) -> None:
        rule = str(finding["rule"])
        self.found[rule] += count
        if len(self.kept[rule]) < KEPT:
            self.kept[rule].append(finding)

    @property
    def crowded(self) -> bool:
        return any(count > KEPT for count in self.found.values())

    def add(self, document: Document) -> None:
        """Put the row of another task to it."""
        self.checked.update(document["checked"])
        self.sums.update(document["sums"])
        self.found.update(document["found"])
        for finding in document["kept"]:
            own = self.kept[str(finding["rule"])]
            if len(own) < KEPT:
                own.append(finding)
        for name, value in document["peaks"].items():
            self.peaks[name] = max(value, self.peaks.get(name, value))
        self.lists += document["lists"]

    def findings(self) -> list[Document]:
        """The first of each rule, the gravest rules first."""
        every = [finding for own in self.kept.values() for finding in own]
        weight = {str(severity): number for severity, number in WEIGHT.items()}
        return sorted(every, key=lambda each: (weight[each["severity"]], each["rule"], each["key"]))

    @property
    def errors(self) -> int:
        grave = {rule for rule, own in self.kept.items() if own and own[0]["severity"] == Severity.ERROR}
        return sum(count for rule, count in self.found.items() if rule in grave)

    def document(self) -> Document:
        return {
            "checked": {name: count for name, count in sorted(self.checked.items()) if count},
            "found": dict(sorted(self.found.items())),
            "kept": self.findings(),
            "sums": dict(self.sums),
            "peaks": dict(self.peaks),
            "lists": list(self.lists),
        }
