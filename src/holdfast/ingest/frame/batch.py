"""A batch in memory: the columns of its records, ready for Arrow, and the identity that it is accepted under.

Records of one sort stand in columns of equal length, with one element per record, and refer to small tables: texts that
occur often, sets of labels, series. Samples and histograms stand series by series, and within a series by sequence
number, so ``seq`` says in which order records were sent. No column is ever walked in Python unless ``records()`` is.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.ingest.records import Record

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sequenced:
    """A record and its number within (agent, boot)."""

    seq: int
    record: Record


@dataclass(frozen=True, slots=True)
class LabelSets:
    """Sets of labels, each once. Set ``i`` has the pairs ``ends[i - 1]`` to ``ends[i]``; keys grow within a set."""

    ends: Ints
    keys: Ints
    """Numbers of texts."""
    values: Ints


@dataclass(frozen=True, slots=True)
class Series:
    """The series of samples or of histograms: one element per series."""

    kind: Ints
    """Numbers of ``Kind``."""
    whole: npt.NDArray[np.bool_]
    """Whether the values are whole numbers, given as ``int``."""
    name: Ints
    """Numbers of texts."""
    labels: Ints
    """Numbers of label sets."""
    length: Ints
    """How many records each series has: at least one."""


@dataclass(frozen=True, slots=True)
class Samples:
    series: Series
    series_id: Ints
    time_ns: Ints
    seq: Ints
    value: Floats
    exact: Ints | None
    """The values of series of whole numbers as they were given, where ``value`` is rounded beyond 2**53; zero
    elsewhere. None if no series is of whole numbers."""
