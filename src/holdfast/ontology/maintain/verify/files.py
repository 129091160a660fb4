"""Deep checks: data files against their manifests, snapshots against their commits. Pure, and blocking."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.audit import Finding
from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data.footer import stats_of
from holdfast.ontology.format.data.lifespans import ORIGIN, in_order, lifespans
from holdfast.ontology.format.data.rows import from_parquet
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.manifest import FileEntry
from holdfast.ontology.format.stats import FileStats
from holdfast.ontology.maintain.verify.rules import finding
from holdfast.ontology.types import names
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeId

Digests = Mapping[int, bytes]
"""By commit, the digest of its rows of one type."""


def check_data(body: bytes, entry: FileEntry, commit_id: int) -> tuple[list[Finding], bytes | None]:
    """Compare a commit's file with its manifest. Also returns the digest of its rows, if they can be read."""
    path = entry.path
    try:
        table = _system_columns(body, path, entry.type_id)
    except Corrupt as error:
        return [finding("file_unreadable", path, str(error))], None
    found: list[Finding] = []
    if entry.content_sha256 and hashlib.sha256(body).hexdigest() != entry.content_sha256:
        found.append(finding("hash_mismatch", path, "its bytes are not those that were committed"))
    if table.num_rows != entry.row_count:
        message = f"it has {table.num_rows} rows, and its manifest says {entry.row_count}"
        found.append(finding("rows_wrong", path, message))
    others = set(table.column("commit_id").unique().to_pylist()) - {commit_id}
    others |= set(table.column(f"{entry.type_id.kind}_type").unique().to_pylist()) - {entry.type_id.name}
    if others:
        listed = ", ".join(sorted(map(str, others)))
        found.append(finding("rows_wrong", path, f"it has rows of another commit or type: {listed}"))
    if not found and entry.stats is not None:
        found += _check_stats(path, entry.stats, stats_of(body, key=path))
    return found, row_digest(table, entry.type_id.kind)


def _check_stats(path: str, stored: FileStats, actual: FileStats) -> Iterator[Finding]:
    """Compare statistics with those of the file itself. Missing statistics are correct."""
    actual = FileStats.parse(actual.document(), key=path)  # as they are after they were stored
    wrong = [name for name, span in stored.columns.items() if name in actual.columns and actual.columns[name] != span]
    fault = None
    if stored.rows != actual.rows:
        fault = f"count {stored.rows} rows, and it has {actual.rows}"
    elif any(one != other for one, other in zip(stored.keys, actual.keys, strict=False)):
        fault = "have other bounds of its keys"
    elif any(one and one != other for one, other in zip(stored.sketches, actual.sketches, strict=False)):
        fault = "have another sketch of its keys"
    elif wrong:
        fault = f"have other bounds of {wrong[0]}"
    if fault is not None:
        yield finding("stats_wrong", path, f"its statistics {fault}")


# --- snapshots ---


def check_snapshot(body: bytes, entry: Entry, type_id: TypeId, expected: Digests) -> list[Finding]:
    """Compare a snapshot with the rows of the commits that it replaces, except commits that could not be read."""
    return list(_snapshot_findings(body, entry, type_id, expected))


def _snapshot_findings(body: bytes, entry: Entry, type_id: TypeId, expected: Digests) -> Iterator[Finding]:
    path = entry.path
    try:
        table = _system_columns(body, path, type_id)
    except Corrupt as error:
        yield finding("snapshot_wrong", path, str(error))
        return
    if not in_order(table.column("commit_id").to_numpy(), _until(table)):
        yield finding("snapshot_wrong", path, "its rows are not in order")
        return
    table = table.take(pc.sort_indices(table, sort_keys=[("commit_id", "ascending")]))
    found = commit_digests(table, type_id.kind)
    wrong = [number for number, digest in found.items() if expected.get(number, digest) != digest]
    excess = [number for number in found if not entry.first <= number <= entry.last or number not in expected]
    missing = [number for number in expected if entry.first <= number <= entry.last and number not in found]
    for what, numbers in (("other", wrong), ("excess", excess), ("no", missing)):
        if numbers:
            yield finding("snapshot_wrong", path, f"it has {what} rows of commit {numbers[0]}")
    if wrong or excess or missing:
        return
    if _has_ends(table):
        yield from _check_ends(entry, table, key_columns(type_id.kind))
    if entry.stats is not None:
        yield from _check_stats(path, entry.stats, stats_of(body, key=path, unique=False))


def _has_ends(table: pa.Table) -> bool:
    """Whether it is a snapshot of ours: a plain writer's rows have no ends."""
    return names.UNTIL in table.column_names and ORIGIN in (table.schema.metadata or {})


def _until(table: pa.Table) -> pa.Array:
    return table.column(names.UNTIL).combine_chunks() if _has_ends(table) else pa.nulls(table.num_rows, pa.int64())


def _check_ends(entry: Entry, rows: pa.Table, keys: Sequence[str]) -> Iterator[Finding]:
    """Compare the commits at which rows ended with what the rows of the same identities say."""
    # Readers ignore ends after the snapshot's own commits, which older versions have written.
    stored = [None if each is not None and each > entry.last else each for each in _until(rows).to_pylist()]
    actual = lifespans(rows, keys).until.to_pylist()
    for number, (said, end) in enumerate(zip(stored, actual, strict=True)):
        if said != end:
            key = "/".join(str(rows.column(name)[number].as_py()) for name in keys)
            row = f"its row {key} of commit {rows.column('commit_id')[number]}"
            yield finding("snapshot_wrong", entry.path, f"{row} ends with commit {said}, and should with {end}")
            return


# --- digests of rows ---


def row_digest(table: pa.Table, kind: str) -> bytes:
    """A digest of identities, fields and tombstones: equal for equal rows, whatever their order in the file."""
    keys = key_columns(kind)
    table = table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys]))
    found = hashlib.blake2b(digest_size=16)
    for name in (*keys, "fields_json"):
        texts = [value if value is not None else "" for value in table.column(name).to_pylist()]
        found.update(np.fromiter(map(len, texts), np.int64, len(texts)).tobytes())
        found.update("".join(texts).encode())
    gone = table.column(names.RETRACTED).to_pylist() if names.RETRACTED in table.column_names else []
    found.update(bytes(map(bool, gone)) if any(gone) else b"")
    return found.digest()


def commit_digests(table: pa.Table, kind: str) -> dict[int, bytes]:
    """The digest of the rows of each commit, of a table that is sorted by commit."""
    commits = table.column("commit_id").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(commits)) + 1).tolist(), len(commits)]
    return {
        int(commits[start]): row_digest(table.slice(start, end - start), kind)
        for start, end in pairwise(edges)
        if end > start
    }


def _system_columns(body: bytes, path: str, type_id: TypeId) -> pa.Table:
    needed = ("commit_id", f"{type_id.kind}_type", *key_columns(type_id.kind), "schema_version_id", "fields_json")
    table = from_parquet(body, key=path, columns=(*needed, names.RETRACTED, names.UNTIL))
    if missing := [name for name in needed if name not in table.column_names]:
        raise Corrupt(f"{path}: it has no column {', '.join(missing)}")
    return table
