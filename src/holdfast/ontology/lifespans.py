"""How long each row of a snapshot was the latest of its identity. Pure.

A snapshot holds the rows of many commits, so of some identities it has several. Its column ``_until`` is the commit of
the next row of the same identity in it, and null for the last one. With it the state at any commit is a condition on
each row, and nothing has to be grouped. Of two rows of one identity and commit, which a plain writer can make, the last
one counts: the other ends with its own commit.

Files of later commits that are there when a snapshot is made end rows of it too. The snapshot says so, and how far it
looked: the head of the type as of the last of those files (``known``). Who has the same files after it, which that head
proves, need not compare keys with them; for everybody else an end after the snapshot's own commits is none.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base import codec
from holdfast.ontology.refs import TypeHead, whole

ORIGIN = b"holdfast.snapshot"
"""Metadata of a snapshot: what it stands for, as JSON."""


def known(metadata: Mapping[bytes, bytes] | None) -> TypeHead | None:
    """How far a snapshot looked beyond its own commits; None if it did not."""
    try:
        commit_id, files, digest = json.loads((metadata or {})[ORIGIN])["known"]
        return TypeHead(whole(commit_id), whole(files), str(digest))
    except codec.MALFORMED:
        return None


def untils(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Of rows in the order of commits: the commit that ended each, or null."""
    count = rows.num_rows
    numbered = rows.select(list(keys)).append_column("_row", pa.array(np.arange(count)))
    order = pc.sort_indices(numbered, sort_keys=[(name, "ascending") for name in (*keys, "_row")]).to_numpy()
    same = np.ones(max(count - 1, 0), dtype=bool)
    for name in keys:
        column = rows.column(name).combine_chunks().take(pa.array(order))
        same &= pc.equal(column.slice(1), column.slice(0, max(count - 1, 0))).to_numpy(zero_copy_only=False)
    commits = rows.column("commit_id").to_numpy()
    found = np.zeros(count, dtype=np.int64)
    lasting = np.ones(count, dtype=bool)
    ended = order[:-1][same]
    found[ended] = commits[order[1:][same]]
    lasting[ended] = False
    return pa.array(found, mask=lasting)
