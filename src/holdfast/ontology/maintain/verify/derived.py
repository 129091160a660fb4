"""Checks of what is derived from the chain: indexes and schema objects.

An index is checked against the files that the chain has, entry by entry, never by the watermark alone. The three
conditions of the specification (lag, missing latest entry, path mismatch) are findings of their own; so are holes and
excess further down, and snapshots that are missing or unproved.

Schema objects are written after the commit that changed a schema, so they may lag; ``schemas_commit`` says up to which
commit they were written. What contradicts the chain up to there, or goes beyond it, was written by another program.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.base import codec
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Object, Store
from holdfast.ontology.chain.catalog import DERIVED, alike, chained_schema
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.index import Entry, Index, entries_do_not_overlap, entries_ordered, proved, read_entries
from holdfast.ontology.format.schema_objects import Versions
from holdfast.ontology.maintain.verify.findings import Finding
from holdfast.ontology.types.refs import UNTOUCHED, FileRef, TypeHead, TypeId, fold

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Truth:
    """What the chain says of one type, as of the head."""

    type_id: TypeId
    head: TypeHead
    files: Sequence[FileRef]
    commit_id: int
    """The head's."""

    @classmethod
    def of(cls, ledger: Ledger, type_id: TypeId, files: Sequence[FileRef]) -> "Truth":
        own = [ref for ref in files if ref.type_id == type_id and ref.commit_id >= ledger.generation_of(type_id)]
        return cls(type_id, ledger.head_of(type_id), own, ledger.commit_id)


async def check_index(store: Store, truth: Truth, exists: Callable[[str], bool]) -> list[Finding]:
    """``exists`` says whether there is an object with this key."""
    key = layout.index_key(*truth.type_id)
    return list(judge(await store.find(key), truth, exists))


def judge(found: Object | None, truth: Truth, exists: Callable[[str], bool]) -> Iterator[Finding]:
    key, name = layout.index_key(*truth.type_id), truth.type_id.label
    if found is None:
        yield Finding("index_absent", key, f"{name} has {len(truth.files)} files and no index")
        return
    try:
        document = codec.decode(found.body, key=key)
        index = read_entries(document, truth.type_id, found.version)
    except (Corrupt, *codec.MALFORMED) as error:
        yield Finding("index_unreadable", key, f"{name}: not an index ({error})")
        return
    if not entries_ordered(index) or not entries_do_not_overlap(index):
        yield Finding("index_overlap", key, f"{name}: entries overlap, or end before they begin")
        return
    yield from _watermark(index, truth, key)
    yield from _entries(index, truth, key)
    yield from _snapshots(index, truth, key, exists)


def _watermark(index: Index, truth: Truth, key: str) -> Iterator[Finding]:
    name, mark, head = truth.type_id.label, index.watermark, truth.commit_id
    if mark > head:
        yield Finding("index_ahead", key, f"{name}: it claims to know commit {mark}, and the head is {head}")
    elif mark < head and mark >= truth.head.commit_id:
        yield Finding("index_lag", key, f"{name}: {head - mark} commits behind; none of them touched the type")
    elif mark < head:
        missing = [ref.commit_id for ref in truth.files if ref.commit_id > mark]
        yield Finding(
            "index_missing_rows",
            key,
            f"{name}: {head - mark} commits behind, of which {len(missing)} have rows of it: {_some(missing)}",
        )


def _entries(index: Index, truth: Truth, key: str) -> Iterator[Finding]:
    """Of the commits up to the watermark: which are not covered, which have another file, and what is too much."""
    name, covered = truth.type_id.label, _Cover(index.entries)
    known = [ref for ref in truth.files if ref.commit_id <= index.watermark]
    missing = [ref.commit_id for ref in known if ref.commit_id not in covered]
    wrong = [ref for ref in known if ref.commit_id in covered and not covered[ref.commit_id].may_hold(ref)]
    if missing and missing[-1] == truth.commit_id:
        yield Finding("index_missing_latest", key, f"{name}: no entry covers the head, commit {missing[-1]}")
        missing.pop()
    if missing:
        yield Finding("index_hole", key, f"{name}: no entry covers {len(missing)} commits: {_some(missing)}")
    for ref in wrong[:SHOWN]:
        entry = covered[ref.commit_id]
        yield Finding("index_path_mismatch", key, f"{name}: commit {ref.commit_id} has {ref.path}, not {entry.path}")
    commits = {ref.commit_id for ref in truth.files}
    excess = [entry.last for entry in index.entries if not entry.snapshot and entry.last not in commits]
    if excess:
        yield Finding("index_excess", key, f"{name}: entries for commits that have no rows of it: {_some(excess)}")


class _Cover:
    """Commit -> entry, without a list of all commits."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._single = {entry.last: entry for entry in entries if not entry.snapshot}
        self._spans = [entry for entry in entries if entry.snapshot]

    def get(self, commit_id: int) -> Entry | None:
        spans = (entry for entry in self._spans if entry.first <= commit_id <= entry.last)
        return self._single.get(commit_id) or next(spans, None)

    def __contains__(self, commit_id: int) -> bool:
        return self.get(commit_id) is not None

    def __getitem__(self, commit_id: int) -> Entry:
        found = self.get(commit_id)
        if found is None:
            raise KeyError(commit_id)
        return found


def _snapshots(index: Index, truth: Truth, key: str, exists: Callable[[str], bool]) -> Iterator[Finding]:
    """Each against the files that it should stand for, by their digest."""
    name = truth.type_id.label
    for entry in index.entries:
        if not entry.snapshot:
            continue
        if not exists(entry.path):
            yield Finding("snapshot_missing", entry.path, f"{name}: {key} names it for {entry.first} to {entry.last}")
            continue
        before = fold(UNTOUCHED, [ref for ref in truth.files if ref.commit_id < entry.first])
        after = fold(before, [ref for ref in truth.files if entry.first <= ref.commit_id <= entry.last])
        if entry.head is None:
            yield Finding("snapshot_unproved", entry.path, f"{name}: of a plain writer, {entry.first} to {entry.last}")
        elif entry.head != after or not proved(entry, truth.type_id, before):
            message = f"{name}: it does not stand for the files of commits {entry.first} to {entry.last}"
            yield Finding("snapshot_unproved", entry.path, message)


def _some(commits: Sequence[int]) -> str:
    shown = ", ".join(map(str, commits[:SHOWN]))
    return shown if len(commits) <= SHOWN else f"{shown}, ..."


_LISTS = {"entity": "entities", "relation": "relations"}


async def check_schemas(store: Store, ledger: Ledger) -> list[Finding]:
    if not ledger.schemas:
        return []  # a plain store: nothing on the chain to compare with
    found: list[Finding] = []
    chain = Chain(store)
    try:
        types = await _document(store, layout.TYPES)
    except Corrupt as error:
        return [Finding("schema_objects_differ", layout.TYPES, str(error))]
    derived, known = types.get(DERIVED, 0), {kind: types.get(name, ()) for kind, name in _LISTS.items()}
    if not isinstance(derived, int) or not all(isinstance(each, list | tuple) for each in known.values()):
        return [Finding("schema_objects_differ", layout.TYPES, "it is not a list of types")]
    for type_id, ref in sorted(ledger.schemas.items()):
        if ref.since > derived:
            continue  # still to be written
        if type_id.name not in known[type_id.kind]:
            found.append(Finding("schema_objects_differ", layout.TYPES, f"it does not know {type_id.label}"))
        key = layout.versions_key(*type_id)
        try:
            versions = Versions.parse(await _document(store, key), key=key)
            found += await _versions(chain, ledger, type_id, versions, key)
        except Corrupt as error:
            found.append(Finding("schema_objects_differ", key, str(error)))
    return found


async def _versions(chain: Chain, ledger: Ledger, type_id: TypeId, known: Versions, key: str) -> list[Finding]:
    found: list[Finding] = []
    name, ref = type_id.label, ledger.schemas[type_id]
    own = next((each for each in known.versions if each.schema_version_id == ref.version_id), None)
    if own is None:
        found.append(Finding("schema_objects_differ", key, f"{name}: it lacks version {ref.version_id}"))
    elif (
        not ref.plain
        and own.schema_hash != ref.hash
        and not alike(own, await chained_schema(chain, ledger, type_id, ref))
    ):
        message = f"{name}: version {ref.version_id} is another schema than the chain's"
        found.append(Finding("schema_objects_differ", key, message))
    latest = known.latest
    if latest is not None and latest.schema_version_id > ref.version_id:
        message = f"{name}: it lists version {latest.schema_version_id}, and the chain has {ref.version_id}"
        found.append(Finding("schema_version_ahead", key, f"{message}: half a migration"))
    return found


async def _document(store: Store, key: str) -> dict[str, Any]:
    found = await store.find(key)
    if found is None:
        return {}
    return codec.decode(found.body, key=key)
