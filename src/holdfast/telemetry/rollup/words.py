"""The words of a message: runs of letters, digits and underscores, in lower case, cut after 64 characters.

The index and searches split messages here: what one finds the other does.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.telemetry.rollup.columns import Ints

LONGEST = 64
_BETWEEN = r"[^\p{L}\p{N}_]+"


def words_of(messages: pa.StringArray) -> tuple[Ints, pa.StringArray]:
    """Every word of every message, with the number of its message; as often as it is there."""
    lists = pc.split_pattern_regex(pc.utf8_lower(messages), pattern=_BETWEEN)
    of: Ints = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    words = pc.list_flatten(lists)
    there = pc.not_equal(words, "")
    words = pc.utf8_slice_codeunits(words.filter(there), 0, LONGEST)
    return of[there.to_numpy(zero_copy_only=False)], words


def words_in(text: str) -> list[str]:
    """The words of one text, each once, in the order of their first use."""
    _, words = words_of(pa.array([text], pa.string()))
    return list(dict.fromkeys(words.to_pylist()))


def has_words(messages: pa.StringArray, wanted: list[str]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which messages have all of these words."""
    found = np.ones(len(messages), np.bool_)
    if not wanted or not len(messages):
        return found
    of, words = words_of(messages)
    for word in wanted:
        has = np.zeros(len(messages), np.bool_)
        has[of[pc.equal(words, word).to_numpy(zero_copy_only=False)]] = True
        found &= has
    return found
