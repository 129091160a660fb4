"""Data files and snapshots under a deep check: bytes, rows, a snapshot against its commits. Pure, and blocking."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data.footer import stats_of
from holdfast.ontology.format.data.lifespans import ORIGIN, in_order, known, lasting_in, lives
from holdfast.ontology.format.data.rows import from_parquet
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.manifest import FileEntry
from holdfast.ontology.format.stats import FileStats, parse_stats
from holdfast.ontology.maintain.verify.findings import Finding
from holdfast.ontology.types import names
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import FileRef, TypeId, fold

Digests = Mapping[int, bytes]
"""Commit -> what its rows of one type say."""


def row_digest(table: pa.Table, kind: str) -> bytes:
    """Of identities, fields and tombstones, ordered by identity: equal for equal rows, however they are stored."""
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
    """Commit by commit, of a table that is sorted by commit."""
    commits = table.column("commit_id").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(commits)) + 1).tolist(), len(commits)]
    return {
        int(commits[start]): row_digest(table.slice(start, end - start), kind)
        for start, end in pairwise(edges)
        if end > start
    }


def check_data(body: bytes, entry: FileEntry, commit_id: int) -> tuple[list[Finding], bytes | None]:
    """A commit's file against its manifest; and the digest of its rows, if it has any that can be read."""
    changed = bool(entry.content_sha256) and hashlib.sha256(body).hexdigest() != entry.content_sha256
    try:
        table = _system_columns(body, entry.path, entry.type_id)
    except Corrupt as error:
        kind = "file_truncated" if body[-4:] != b"PAR1" else "file_unreadable"
        return [Finding(kind, entry.path, str(error))], None
    findings = [Finding("hash_mismatch", entry.path, "its bytes are not those that were committed")] if changed else []
    if table.num_rows != entry.row_count:
        message = f"it has {table.num_rows} rows, and its manifest says {entry.row_count}"
        findings.append(Finding("row_count_mismatch", entry.path, message))
    others = set(table.column("commit_id").unique().to_pylist()) - {commit_id}
    types = set(table.column(f"{entry.type_id.kind}_type").unique().to_pylist()) - {entry.type_id.name}
    if others or types:
        listed = ", ".join(map(str, sorted(map(str, others | types))))
        findings.append(Finding("rows_wrong", entry.path, f"it has rows of {listed}"))
    if not findings and entry.stats is not None:
        findings += _check_stats(entry.path, entry.stats, stats_of(body, key=entry.path))
    return findings, row_digest(table, entry.type_id.kind)


def _check_stats(path: str, said: FileStats, found: FileStats) -> Iterator[Finding]:
    """Statistics against the file's own: by wrong ones queries would leave it out. Missing statistics are correct."""
    found = parse_stats(found.document()) or found  # as documents have them
    wrong = [name for name, span in said.columns.items() if name in found.columns and found.columns[name] != span]
    if said.rows != found.rows:
        yield Finding("stats_wrong", path, f"its statistics speak of {said.rows} rows, and it has {found.rows}")
    elif any(one != other for one, other in zip(said.keys, found.keys, strict=False)):
        yield Finding("stats_wrong", path, "its statistics have other bounds of its keys")
    elif any(one and one != other for one, other in zip(said.sketches, found.sketches, strict=False)):
        yield Finding("stats_wrong", path, "its statistics have another sketch of its keys")
    elif wrong:
        yield Finding("stats_wrong", path, f"its statistics have other bounds of {wrong[0]}")


def looked_at(body: bytes, path: str, entry: Entry, files: Sequence[FileRef]) -> Sequence[FileRef]:
    """Of a type's files those after a snapshot from which it knows when its rows end; none if they prove otherwise."""
    try:
        head = known(from_parquet(body, key=path, columns=("commit_id",)).schema.metadata)
    except Corrupt:
        return ()  # a finding of its own
    if head is None or entry.head is None:
        return ()
    later = [ref for ref in files if entry.last < ref.commit_id <= head.commit_id]
    return later if fold(entry.head, later) == head else ()


def check_snapshot(
    body: bytes, entry: Entry, type_id: TypeId, expected: Digests, later: Sequence[bytes] = ()
) -> Iterator[Finding]:
    """A snapshot against the rows of the commits that it stands for; commits that could not be read are left out.

    ``later`` are the files from which it knows when some of its rows end; without them it is asked about its own.
    """
    try:
        table = _system_columns(body, entry.path, type_id)
    except Corrupt as error:
        yield Finding("snapshot_wrong", entry.path, str(error))
        return
    lasting = lasting_in(table.schema.metadata) if _says_ends(table) else None
    ended = table.column(names.UNTIL).is_valid() if _says_ends(table) else pc.is_null(table.column("commit_id"))
    if not in_order(table.column("commit_id").to_numpy(), ended.to_numpy(), lasting):
        yield Finding("snapshot_wrong", entry.path, "its rows are not in order")
        return
    table = table.take(pc.sort_indices(table, sort_keys=[("commit_id", "ascending")]))
    found = commit_digests(table, type_id.kind)
    wrong = [number for number, digest in found.items() if expected.get(number, digest) != digest]
    strange = [number for number in found if not entry.first <= number <= entry.last or number not in expected]
    missing = [number for number in expected if entry.first <= number <= entry.last and number not in found]
    for what, numbers in (("other", wrong), ("excess", strange), ("no", missing)):
        if numbers:
            yield Finding("snapshot_wrong", entry.path, f"it has {what} rows of commit {numbers[0]}")
    if not (wrong or strange or missing):
        keys = key_columns(type_id.kind)
        try:
            after = [_system_columns(each, entry.path, type_id).select(["commit_id", *keys]) for each in later]
        except Corrupt:
            after = []  # of a file that is a finding of its own
        if _says_ends(table):
            yield from _check_ends(entry, table, keys, after)
        if entry.stats is not None:
            yield from _check_stats(entry.path, entry.stats, stats_of(body, key=entry.path, unique=False))


def _says_ends(table: pa.Table) -> bool:
    """Whether its rows say until when they last, by which readers know which were replaced; a plain writer's do not."""
    return names.UNTIL in table.column_names and ORIGIN in (table.schema.metadata or {})


def _check_ends(entry: Entry, rows: pa.Table, keys: Sequence[str], later: Sequence[pa.Table]) -> Iterator[Finding]:
    said = rows.column(names.UNTIL).to_pylist()
    if not later:
        said = [each if each is None or each <= entry.last else None for each in said]
    identities = pa.concat_tables([rows.select(["commit_id", *keys]), *later])
    meant = lives(identities, keys, rows.num_rows).until.to_pylist()
    wrong = next((number for number, pair in enumerate(zip(said, meant, strict=True)) if pair[0] != pair[1]), None)
    if wrong is not None:
        key = "/".join(str(rows.column(name)[wrong].as_py()) for name in keys)
        message = f"its row {key} of commit {rows.column('commit_id')[wrong]} says that it lasts until {said[wrong]}, "
        yield Finding("snapshot_wrong", entry.path, f"{message}and it lasts until {meant[wrong]}")


def _system_columns(body: bytes, path: str, type_id: TypeId) -> pa.Table:
    keys = key_columns(type_id.kind)
    needed = ("commit_id", f"{type_id.kind}_type", *keys, "schema_version_id", "fields_json")
    table = from_parquet(body, key=path, columns=(*needed, names.RETRACTED, names.UNTIL))
    if missing := [name for name in needed if name not in table.column_names]:
        raise Corrupt(f"{path}: it has no column {', '.join(missing)}")
    return table
