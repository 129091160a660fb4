"""Until when each row of a snapshot is the latest of its identity. Pure.

A snapshot holds the rows of many commits, so an identity may have several rows in it. The column ``_until`` holds the
commit of the next row of the same identity in the snapshot, and null for the last one. The state at a commit is then a
condition on each row, without grouping. Files after the snapshot are not considered: readers compare keys with them.

A plain writer can write two rows of one identity in one commit. The last one counts: the other one ends with its own
commit, and no query shows it.

Rows without an end come first, then the others, both by commit and identity. So a reader of a recent state can skip row
groups by their statistics of ``_until``. If an identity has two rows of one commit, all rows are ordered by commit and
identity instead, since some readers take the later of two such rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ORIGIN = b"holdfast.snapshot"
"""Metadata of a snapshot: the type and the commits that it covers, as JSON."""

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Lifespans(NamedTuple):
    until: pa.Array
    """The commit that ended each row, or null."""
    order: Numbers
    """The numbers of the rows in the order of a snapshot."""
    lasting: int
    """How many rows of that order come before the first row with an end; all of them if it is by commit."""


def lifespans(rows: pa.Table, keys: Sequence[str]) -> Lifespans:
    """The lifespans of these rows. Rows of one identity and commit must be in their original order."""
    count = rows.num_rows
    numbered = rows.select([*keys, "commit_id"]).append_column("_row", pa.array(np.arange(count)))
    by = [(name, "ascending") for name in (*keys, "commit_id", "_row")]
    sorted_rows = pc.sort_indices(numbered, sort_keys=by).to_numpy()
    same = np.ones(max(count - 1, 0), dtype=bool)
    for name in keys:
        column = rows.column(name).combine_chunks().take(pa.array(sorted_rows))
        same &= pc.equal(column.slice(1), column.slice(0, max(count - 1, 0))).to_numpy(zero_copy_only=False)
    commits = rows.column("commit_id").to_numpy()
    until, ended = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    replaced = sorted_rows[:-1][same]
    until[replaced] = commits[sorted_rows[1:][same]]
    ended[replaced] = True
    rank = np.empty(count, dtype=np.int64)
    rank[sorted_rows] = np.arange(count)
    by_commit = _twice_in_one_commit(commits, until, ended)
    order = np.lexsort((rank, commits) if by_commit else (rank, commits, ended))
    return Lifespans(pa.array(until, mask=~ended), order, count if by_commit else int(np.count_nonzero(~ended)))


def in_order(commits: Numbers, until: pa.Array) -> bool:
    """Whether rows with these commits and ends are in the order of a snapshot."""
    ended: Mask = until.is_valid().to_numpy(zero_copy_only=False)
    ends: Numbers = until.fill_null(0).to_numpy(zero_copy_only=False)
    if _twice_in_one_commit(commits, ends, ended):
        return bool(np.all(np.diff(commits) >= 0))
    lasting = int(np.count_nonzero(~ended))
    parts = (commits[:lasting], commits[lasting:])
    return not ended[:lasting].any() and all(bool(np.all(np.diff(part) >= 0)) for part in parts)


def _twice_in_one_commit(commits: Numbers, until: Numbers, ended: Mask) -> bool:
    return bool(np.any(ended & (until == commits)))
