"""How long each row of a snapshot was the latest of its identity. Pure.

A snapshot holds the rows of many commits, so of some identities it has several. Its column ``_until`` is the commit of
the next row of the same identity in it, and null for the last one. With it the state at any commit is a condition on
each row, and nothing has to be grouped. Of two rows of one identity and commit, which a plain writer can make, the last
one counts: the other ends with its own commit.

Files of later commits that are there when a snapshot is made end rows of it too. The snapshot says so, and how far it
looked: the head of the type as of the last of those files (``known``). A reader with the same files after it, which
that head proves, need not compare keys with them; for other readers an end after the snapshot's own commits does not
count.

Rows that last come first, those that have ended after them, each by commit and identity. The snapshot says how many the
former are (``Lasting``), so that who asks for the latest state stops there and asks no row. Where an identity has two
rows of one commit, all rows lie by commit and identity, as they came, and nothing is said: readers that take such rows
one after the other go by their order.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base import codec
from holdfast.ontology.types.refs import TypeHead, whole

ORIGIN = b"holdfast.snapshot"
"""Metadata of a snapshot: what it stands for, as JSON."""


class Lasting(NamedTuple):
    """How many of the first rows of a file have no end; valid only for a file with this total number of rows."""

    first: int
    rows: int


class Lives(NamedTuple):
    """When rows end, and in which order a snapshot has them."""

    until: pa.Array
    """The commit that ended each row, or null."""
    order: np.ndarray
    """Numbers of rows: those that last, then those that have ended, if ``lasting`` divides them."""
    lasting: Lasting | None


def known(metadata: Mapping[bytes, bytes] | None) -> TypeHead | None:
    """How far a snapshot read beyond its own commits; None if it did not."""
    try:
        commit_id, files, digest = json.loads((metadata or {})[ORIGIN])["known"]
        return TypeHead(whole(commit_id), whole(files), str(digest))
    except codec.MALFORMED:
        return None


def lasting_in(metadata: Mapping[bytes, bytes] | None) -> Lasting | None:
    """The order that a snapshot declares; None if it declares none, or an impossible one."""
    try:
        first, rows = json.loads((metadata or {})[ORIGIN])["lasting"]
        return Lasting(whole(first), whole(rows)) if 0 <= first <= rows else None
    except codec.MALFORMED:
        return None


def lives(rows: pa.Table, keys: Sequence[str], own: int) -> Lives:
    """Of the first ``own`` of these rows, by the others too. Those of one identity and commit are in their order."""
    count = rows.num_rows
    numbered = rows.select([*keys, "commit_id"]).append_column("_row", pa.array(np.arange(count)))
    by = [(name, "ascending") for name in (*keys, "commit_id", "_row")]
    sorted_rows = pc.sort_indices(numbered, sort_keys=by).to_numpy()
    same = np.ones(max(count - 1, 0), dtype=bool)
    for name in keys:
        column = rows.column(name).combine_chunks().take(pa.array(sorted_rows))
        same &= pc.equal(column.slice(1), column.slice(0, max(count - 1, 0))).to_numpy(zero_copy_only=False)
    commits = rows.column("commit_id").to_numpy()
    until = np.zeros(count, dtype=np.int64)
    ends = np.zeros(count, dtype=bool)
    ended = sorted_rows[:-1][same]
    until[ended] = commits[sorted_rows[1:][same]]
    ends[ended] = True
    rank = np.empty(count, dtype=np.int64)
    rank[sorted_rows] = np.arange(count)
    until, ends, rank, commits = until[:own], ends[:own], rank[:own], commits[:own]
    apart = not bool(np.any(ends & (until == commits)))
    order = np.lexsort((rank, commits, ends) if apart else (rank, commits))
    lasting = Lasting(own - int(np.count_nonzero(ends)), own) if apart else None
    return Lives(pa.array(until, mask=~ends), order, lasting)


def in_order(commits: np.ndarray, ended: np.ndarray, lasting: Lasting | None) -> bool:
    """Whether rows of these commits, which have ended or not, lie as it is said of them."""
    if lasting is None:
        return bool(np.all(np.diff(commits) >= 0))
    first, rows = lasting
    parted = len(commits) == rows and not np.any(ended[:first]) and bool(np.all(ended[first:]))
    return parted and all(bool(np.all(np.diff(part) >= 0)) for part in (commits[:first], commits[first:]))
