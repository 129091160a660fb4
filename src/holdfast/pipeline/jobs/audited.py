"""Recorded audits: what was checked, how thoroughly, up to which moment the result holds, and the findings.

    meta/pipeline/audits/v1/{audit_id}.json                     one audit that came to its end; created, never changed
    meta/pipeline/audits/v1/{audit_id}/began.json               made first: its time is the store's own
    meta/pipeline/audits/v1/{audit_id}/findings/{task}.jsonl    everything that a task found, where there is much

``through_unix_ns`` is by the store's clock (correction 5): every object of the audited scopes that the store last
modified before that moment, and that was there when the audit began, was looked at. An audit that was cut short has no
record; one that could not judge a scope says so in ``incomplete``, and proves nothing about it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, NotFound
from holdfast.base.record import Record
from holdfast.objects.store import Object, Store

AUDITS = "meta/pipeline/audits/v1/"
FORMAT = "holdfast.pipeline.audit"
KEPT = 100
"""Findings of each rule that the record contains; it counts the others and names the ``lists`` that have them."""


class Scope(StrEnum):
    INGEST = "ingest"
    METRICS = "metrics"
    RUNS = "runs"
    BUS = "bus"
    ONTOLOGY = "ontology"


SCAN = "scan"
INVENTORY = "inventory"


@dataclass(frozen=True)
class Audited(Record):
    WHAT = "the record of an audit"

    audit_id: str
    run_id: str
    scopes: tuple[str, ...]
    source: str
    """``scan``: listings of the store. ``inventory``: an S3 Inventory report named the manifests."""
    one_in: int
    """The bytes of one object in this many were read; 1 is a deep audit."""
    began_unix_ns: int
    """By the driver's clock, as is the next."""
    ended_unix_ns: int
    through_unix_ns: int
    """By the store's clock."""
    checked: dict[str, int] = field(default_factory=dict)
    """The numbers of checked objects, by kind."""
    found: dict[str, int] = field(default_factory=dict)
    """The number of findings of each rule."""
    findings: tuple[Document, ...] = ()
    """The first of each rule."""
    lists: tuple[str, ...] = ()
    """Keys of lists with all findings, of tasks with more findings than this record contains."""
    incomplete: dict[str, str] = field(default_factory=dict)
    """Scopes that could not be judged as a whole, and why."""

    @property
    def key(self) -> str:
        return record_key(self.audit_id)

    @property
    def errors(self) -> int:
        return sum(count for rule, count in self.found.items() if self.severity(rule) == "error")

    @property
    def good(self) -> bool:
        """Whether no error was found."""
        return not self.errors

    def complete(self, scope: str) -> bool:
        return scope in self.scopes and scope not in self.incomplete

    def severity(self, rule: str) -> str:
        return next((str(each["severity"]) for each in self.findings if each["rule"] == rule), "error")

    def document(self, **more: Any) -> Document:
        return super().document(good=self.good, format=FORMAT, version=1, **more)

    def encode(self, write_id: str) -> bytes:
        return codec.encode(self.document(write_id=write_id))

    @classmethod
    def read(cls, found: Object) -> "Audited":
        document = codec.decode(found.body, key=found.key)
        codec.expect(document, format_name=FORMAT, newest=1, key=found.key)
        audited = replace(cls.parse(document, key=found.key), extra={})  # the body's write id
        if audited.key != found.key:
            raise Corrupt(f"{found.key}: not {cls.WHAT}, but of {audited.audit_id}")
        return audited


def record_key(audit_id: str) -> str:
    return f"{AUDITS}{audit_id}.json"


def began_key(audit_id: str) -> str:
    return f"{AUDITS}{audit_id}/began.json"


def list_key(audit_id: str, task: str) -> str:
    return f"{AUDITS}{audit_id}/findings/{task}.jsonl"


async def latest_complete(store: Store, scope: str) -> Audited | None:
    """The latest audit that covered the whole of a scope, whatever it found."""
    async for audited in latest(store):
        if audited.complete(scope):
            return audited
    return None


async def latest(store: Store) -> AsyncIterator[Audited]:
    """Recorded audits, the latest first. One LIST per thousand, one GET for each that is asked for."""
    keys: list[str] = []
    async for page in store.list(AUDITS, delimiter=True):
        keys += [entry.key for entry in page.entries if entry.key.endswith(".json")]
    for key in reversed(keys):
        found = await store.find(key)
        if found is not None:
            yield Audited.read(found)


async def read(store: Store, audit_id: str) -> Audited:
    found = await store.find(record_key(audit_id))
    if found is None:
        raise NotFound(f"there is no audit {audit_id}", remedy="see `holdfast audit list`")
    return Audited.read(found)
