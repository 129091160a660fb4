"""Batches of one agent and boot whose ranges of sequence numbers overlap. Every number counts once: of the batches that
have a record under it, the one of the lowest identity keeps it. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from holdfast.telemetry.identity import BatchIdentity

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def overlapping_groups(items: Iterable[T], identity: Callable[[T], BatchIdentity]) -> Iterator[list[T]]:
    """All items in the order of their identities, in groups: items of different groups share no number. An item that
    overlaps no other is a group of its own.
    """
    group: list[T] = []
    source, reach = ("", ""), -1
    for item in sorted(items, key=identity):
        own = identity(item)
        if group and ((own.agent_id, own.boot_id) != source or own.seq_start > reach):
            yield group
            group = []
        reach = max(reach, own.seq_end) if group else own.seq_end
        source = own.agent_id, own.boot_id
        group.append(item)
    if group:
        yield group


def repeated_numbers(seqs: Sequence[Ints], free: Sequence[Flags] | None = None) -> list[Ints | None]:
    """For each batch of a group, the numbers that it does not keep because a batch before it has them; None if it keeps
    all. With ``free``, only the numbers that are marked there can be kept.

    ``seqs`` are the numbers of each batch, in the order of the group. Comparing batches in pairs would take quadratic
    time.
    """
    numbers = np.concatenate(seqs)
    places = np.arange(len(numbers)) if free is None else np.flatnonzero(np.concatenate(free))
    repeated = np.ones(len(numbers), np.bool_)
    repeated[places[np.unique(numbers[places], return_index=True)[1]]] = False  # the first of equal numbers
    found: list[Ints | None] = []
    end = 0
    for own in seqs:
        begin, end = end, end + len(own)
        lost = own[repeated[begin:end]]
        found.append(lost if len(lost) else None)
    return found
