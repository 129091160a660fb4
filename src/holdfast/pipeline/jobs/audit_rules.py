"""What an audit says of a store as a whole: what lies at its root that nothing of ours has put there."""

from collections.abc import AsyncIterator

from holdfast.base.audit import Finding, Severity, rules
from holdfast.bus import layout as bus
from holdfast.objects.client import START_CHECK_PREFIX
from holdfast.objects.store import Store
from holdfast.ontology.format import layout as ontology
from holdfast.runs import layout as runs
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.rollup import layout as metrics

RULES = rules(
    Severity.INFORMATION,
    unknown_prefix=("objects of another program beside ours", "nothing: registers of your own may lie anywhere"),
)

PREFIXES = (
    *(ingest.ACCEPTED, ingest.ACCEPTED_BY_TIME, ingest.ACCEPTED_BY_BLOB, ingest.BLOBS, ingest.BLOBS_BY_TIME),
    *(ingest.CONFLICTS, ingest.CONFLICTS_BY_BLOB, ingest.EXPIRED),
    *(metrics.ROLLUP, metrics.INDEX, metrics.MANIFESTS, metrics.BATCHES_BY_HOUR),
    *(ontology.COMMITS, ontology.SNAPSHOTS, ontology.INDICES),
    *(runs.ROOT, runs.INDEX),
    *(bus.EVENTS, bus.CLAIMS, bus.DEAD_LETTERS, bus.SESSIONS, bus.BUS),
)
ROOTS = frozenset(prefix.partition("/")[0] for prefix in PREFIXES)


async def strangers(store: Store) -> AsyncIterator[Finding]:
    """One LIST, unless the root has more than a thousand names."""
    async for page in store.list("", delimiter=True):
        for name in (*page.folders, *(entry.key for entry in page.entries)):
            if name.rstrip("/") not in ROOTS and not name.startswith(START_CHECK_PREFIX):
                yield Finding(RULES["unknown_prefix"], name, "nothing of Holdfast has such a name")
