"""Recorded audits: what was checked, how thoroughly, up to which moment the result holds, and the findings.

    meta/pipeline/audits/v1/{audit_id}.json                     one audit that came to its end; created, never changed
    meta/pipeline/audits/v1/{audit_id}/began.json               made first: its time is the store's own
    meta/pipeline/audits/v1/{audit_id}/findings/{task}.jsonl    everything that a task found, where there is much

``through_unix_ns`` is by the store's clock (correction 5): every object of the audited scopes that the store last
modified before that moment, and that was there when the audit began, was looked at. An audit that was cut short has no
record; one that could not judge a scope says so in ``incomplete``, and proves nothing about it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt, NotFound
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
class Audited:
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
    checked: Mapping[str, int] = field(default_factory=dict)
    """The numbers of checked objects, by kind."""
    found: Mapping[str, int] = field(default_factory=dict)
    """The number of findings of each rule."""
    findings: Sequence[Document] = ()
    """The first of each rule."""
    lists: Sequence[str] = ()
    """Keys of lists with all findings, of tasks with more findings than this record contains."""
    incomplete: Mapping[str, str] = field(default_factory=dict)
    """Scopes that could not be judged as a whole, and why."""

    @property
    def key(self) -> str:
        return record_key(self.audit_id)

    @property
    def errors(self) -> int:
        return self._count("error")

    @property
    def good(self) -> bool:
        """Whether no error was found."""
        return not self.errors

    def complete(self, scope: str) -> bool:
        return scope in self.scopes and scope not in self.incomplete

    def severity(self, rule: str) -> str:
        return next((str(each["severity"]) for each in self.findings if each["rule"] == rule), "error")

    def _count(self, severity: str) -> int:
        return sum(count for rule, count in self.found.items() if self.severity(rule) == severity)

    def document(self) -> Document:
        plain = {
            **asdict(self),
            "scopes": list(self.scopes),
            "findings": list(self.findings),
            "lists": list(self.lists),
        }
        return {**plain, "good": self.good, "format": FORMAT, "version": 1}

    def encode(self, write_id: str) -> bytes:
        return codec.encode({**self.document(), "write_id": write_id})

    @classmethod
    def read(cls, found: Object) -> "Audited":
        document = codec.decode(found.body, key=found.key)
        codec.expect(document, format_name=FORMAT, newest=1, key=found.key)
        try:
            given: Document = {each.name: document[each.name] for each in fields(cls)}
            lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
            audited = cls(**{**given, **lists})
            whole = (audited.through_unix_ns, audited.one_in, audited.began_unix_ns, audited.ended_unix_ns)
            if not all(isinstance(each, int) for each in whole) or audited.key != found.key:
                raise ValueError("its fields are not those of an audit")
        except MALFORMED as error:
            raise Corrupt(f"{found.key}: not the record of an audit ({error})") from error
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
    """Audits on record, the latest first. One LIST per thousand, one GET for each that is asked for."""
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
