"""Columns of text, from Python's strings.

Arrow's own way from a list looks whether the list is one of pandas, and imports pandas for it where that is installed:
twice the memory of an agent, for nothing. So the buffers are made here.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.base.errors import Invalid

LONGEST = 2**31 - 1
"""Offsets of text have 32 bits."""


def text_array(texts: Sequence[str]) -> pa.StringArray:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if int(ends[-1]) > LONGEST:
        raise Invalid(f"{ends[-1]} bytes of text are too many for one batch", remedy="send smaller batches")
    offsets, data = ends.astype(np.int32), b"".join(encoded)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(data))
