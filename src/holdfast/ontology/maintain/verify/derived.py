"""Checks of what is derived from the chain: indexes and schema objects.

An index is compared with the files that the chain has, entry by entry; its watermark alone proves nothing. Schema
objects are written after the commit that changed a schema, so they may lag: ``schemas_commit`` says up to which commit
they were derived. What contradicts the chain up to that commit, or goes beyond it, was written by another program.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.base import codec
from holdfast.base.audit import Finding
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import chained_schema, same_schema
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Entry, Index, entries_do_not_overlap, entries_ordered, parse_index, proved
from holdfast.ontology.format.schema_objects import Types, Versions
from holdfast.ontology.maintain.verify.rules import finding
from holdfast.ontology.types.refs import UNTOUCHED, FileRef, TypeId, fold

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Truth:
    """The files of one type, as the chain has them at the checked head."""

    type_id: TypeId
    files: Sequence[FileRef]
    """In the order of commits."""
    commit_id: int
    """The head's."""

    @classmethod
    def of(cls, ledger: Ledger, type_id: TypeId, files: Sequence[FileRef]) -> "Truth":
        own = [ref for ref in files if ref.type_id == type_id and ref.commit_id >= ledger.generation_of(type_id)]
        return cls(type_id, own, ledger.commit_id)


async def check_index(store: Store, truth: Truth, listed: Container[str]) -> tuple[list[Finding], Sequence[Entry]]:
    """Findings about the index of a type; and the snapshots that it names. ``listed`` are the keys of all objects."""
    key, name = layout.index_key(*truth.type_id), truth.type_id.label
    found = await store.find(key)
    if found is None:
        return [finding("index_absent", key, f"{name} has {len(truth.files)} files and no index")], ()
    try:
        index = parse_index(codec.decode(found.body, key=key), truth.type_id, found.version)
    except Corrupt as error:
        return [finding("index_wrong", key, f"{name}: not an index ({error})")], ()
    if not entries_ordered(index) or not entries_do_not_overlap(index):
        return [finding("index_wrong", key, f"{name}: entries overlap, or end before they begin")], ()
    if truth.commit_id < index.watermark <= (await read_head(store)).commit_id:
        return [], ()  # a commit was made during this check, and the index knows of it already
    snapshots = [entry for entry in index.entries if entry.snapshot]
    missing = [each.path for each in snapshots if each.path not in listed and not await exists(store, each.path)]
    return list(compare_index(index, truth, missing)), [each for each in snapshots if each.path not in missing]


async def exists(store: Store, key: str) -> bool:
    try:
        await store.head(key)
    except NotFound:
        return False
    return True


def compare_index(index: Index, truth: Truth, missing: Collection[str]) -> Iterator[Finding]:
    """``missing`` are the paths of snapshots that do not exist."""
    key, name, watermark, head = layout.index_key(*index.type_id), index.type_id.label, index.watermark, truth.commit_id
    if watermark > head:
        yield finding("index_wrong", key, f"{name}: it claims to know commit {watermark}, and the head is {head}")
    files, commits = truth.files, [ref.commit_id for ref in truth.files]
    covered = 0
    """How many of the files are those of the entries so far."""
    gaps: list[int] = []
    for entry in index.entries:
        start, end = bisect_left(commits, entry.first), bisect_right(commits, entry.last)
        gaps += commits[covered:start]
        covered = end
        if entry.snapshot:
            yield from _check_snapshot(entry, files[:start], files[start:end], key, missing)
        elif [ref.path for ref in files[start:end]] != [entry.path]:
            named = files[start].path if start < end else "no file"
            yield finding("index_wrong", key, f"{name}: commit {entry.last} has {named}, not {entry.path}")
    gaps += [commit_id for commit_id in commits[covered:] if commit_id <= watermark]
    if gaps:
        yield finding("index_wrong", key, f"{name}: no entry covers {len(gaps)} commits: {_some(gaps)}")
    later = [commit_id for commit_id in commits[covered:] if commit_id > watermark]
    behind = f"{name}: {head - watermark} commits behind"
    if later:
        yield finding("index_missing_rows", key, f"{behind}, of which {len(later)} have rows of it: {_some(later)}")
    elif watermark < head:
        yield finding("index_lag", key, f"{behind}; none of them touched the type")


def _check_snapshot(
    entry: Entry, before: Sequence[FileRef], own: Sequence[FileRef], key: str, missing: Collection[str]
) -> Iterator[Finding]:
    """The entry of a snapshot against the files that it replaces, by their digest."""
    span = f"commits {entry.first} to {entry.last}"
    base = fold(UNTOUCHED, before)
    if entry.path in missing:
        yield finding("snapshot_missing", entry.path, f"{key} names it for {span}")
    elif entry.head is None:
        yield finding("snapshot_unproved", entry.path, f"a plain writer made it of {span}")
    elif not own or entry.head != fold(base, own) or not proved(entry, own[0].type_id, base):
        yield finding("snapshot_unproved", entry.path, f"it does not replace the files of {span}")


def _some(commits: Sequence[int]) -> str:
    shown = ", ".join(map(str, commits[:SHOWN]))
    return shown if len(commits) <= SHOWN else f"{shown}, ..."


# --- schema objects ---


async def check_schemas(store: Store, ledger: Ledger) -> list[Finding]:
    if not ledger.schemas:
        return []  # a plain store: there is nothing on the chain to compare with
    try:
        types = Types.parse(await _document(store, layout.TYPES), key=layout.TYPES)
    except Corrupt as error:
        return [finding("schema_objects_differ", layout.TYPES, str(error))]
    derived = types.schemas_commit if isinstance(types.schemas_commit, int) else 0
    listed = {"entity": types.entities, "relation": types.relations}
    found: list[Finding] = []
    for type_id, ref in sorted(ledger.schemas.items()):
        if ref.since > derived:
            continue  # not written yet
        if type_id.name not in listed[type_id.kind]:
            found.append(finding("schema_objects_differ", layout.TYPES, f"it does not list {type_id.label}"))
        found += await _check_versions(store, ledger, type_id)
    return found


async def _check_versions(store: Store, ledger: Ledger, type_id: TypeId) -> list[Finding]:
    key, name, ref = layout.versions_key(*type_id), type_id.label, ledger.schemas[type_id]
    try:
        versions = Versions.parse(await _document(store, key), key=key)
    except Corrupt as error:
        return [finding("schema_objects_differ", key, str(error))]
    found: list[Finding] = []
    own = next((each for each in versions.versions if each.schema_version_id == ref.version_id), None)
    if own is None:
        found.append(finding("schema_objects_differ", key, f"{name}: it lacks version {ref.version_id}"))
    elif (
        not ref.plain
        and own.schema_hash != ref.hash
        and not same_schema(own, await chained_schema(Chain(store), ledger, type_id, ref))
    ):
        message = f"{name}: its version {ref.version_id} is not the schema of the chain"
        found.append(finding("schema_objects_differ", key, message))
    latest = versions.latest.schema_version_id if versions.latest is not None else 0
    if latest > ref.version_id:
        message = f"{name}: it lists version {latest}, and the chain has {ref.version_id}: half a migration"
        found.append(finding("schema_version_ahead", key, message))
    return found


async def _document(store: Store, key: str) -> dict[str, Any]:
    found = await store.find(key)
    return {} if found is None else codec.decode(found.body, key=key)
