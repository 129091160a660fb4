"""How work is divided among tasks. Pure.

A task costs a tenth of a second or more before it does anything, and a group that is much larger than the others is
what everybody waits for in the end. So there are no more groups than cores can take up or than the work is worth, and
the heaviest pieces are placed first, each where there is least.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

TURNS = 2
"""Groups per core, at the most: a core that is done early takes up another."""


def divide(
    items: Sequence[T], weigh: Callable[[T], int], *, cores: int, worth: int, turns: int = TURNS
) -> list[list[T]]:
    """Groups of about equal weight, in a stable order. A group is ``worth`` a task of its own, or there is only one.

    A piece of more than ``worth`` is never divided.
    """
    if not items:
        return []
    weights = [max(0, weigh(item)) for item in items]
    most = max(1, min(len(items), cores * turns, -(-sum(weights) // max(1, worth))))
    # Whole turns: one that only some cores have work for is wasted on the others.
    groups = most if most <= cores else most // cores * cores
    heap = [(0, number) for number in range(groups)]
    found: list[list[int]] = [[] for _ in range(groups)]
    for place in sorted(range(len(items)), key=lambda at: (-weights[at], at)):
        filled, number = heapq.heappop(heap)
        found[number].append(place)
        heapq.heappush(heap, (filled + weights[place], number))
    return [[items[place] for place in sorted(group)] for group in found if group]
