"""A summary of a store: head, files per type, index lag, lock. Reads only."""

from dataclasses import dataclass

from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.commit import lock
from holdfast.ontology.commit.lock import LockState
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Index, folded, read_index
from holdfast.ontology.types.refs import TypeId

MANY_FILES = 100
"""The number of files from which compaction is advised."""


@dataclass(frozen=True, slots=True)
class TypeFiles:
    type_id: TypeId
    files: int
    """Files that a reader reads: snapshots, and files of commits that no snapshot covers."""
    last_commit: int
    schema_version_id: int | None
    index_lag: int
    """Commits after the index's watermark."""

    @property
    def advice(self) -> str | None:
        return f"{self.files} files: compact" if self.files > MANY_FILES else None


@dataclass(frozen=True, slots=True)
class Info:
    commit_id: int
    manifest_path: str | None
    updated_at: str
    types: tuple[TypeFiles, ...]
    lock: LockState | None
    last_index_warning: str | None

    @property
    def index_lag(self) -> int:
        return max((each.index_lag for each in self.types), default=0)


async def read_info(store: Store, ambient: Ambient, chain: Chain, *, last_index_warning: str | None = None) -> Info:
    head = await read_head(store)
    ledger = await chain.ledger(head.place)
    types: list[TypeFiles] = []
    warning = last_index_warning
    for type_id in sorted({*ledger.heads, *ledger.schemas}):
        index = await read_index(store, type_id)
        ref, type_head = ledger.schemas.get(type_id), ledger.head_of(type_id)
        lag = max(0, ledger.commit_id - index.watermark)
        version_id = ref.version_id if ref is not None else None
        fault = index_warning(index, ledger)
        files = type_head.files if fault is not None else len(index.entries)
        types.append(TypeFiles(type_id, files, type_head.commit_id, version_id, lag))
        warning = warning or fault
    held = await lock.show(store, ambient)
    return Info(head.commit_id, head.manifest_path, head.updated_at, tuple(types), held, warning)


def index_warning(index: Index, ledger: Ledger) -> str | None:
    """What is wrong with an index, by the specification's three conditions; None if nothing is."""
    head, name = ledger.head_of(index.type_id), index.type_id.label
    if index.watermark > ledger.commit_id:
        return f"{name}: the index is ahead of the head ({index.watermark} against {ledger.commit_id})"
    if index.watermark < head.commit_id:
        return f"{name}: the index lags, it lacks commit {head.commit_id}"
    if folded(index.entries, (), index.type_id) != head:
        return f"{name}: the index does not list the files that the chain has"
    return None
