"""Divides work into groups of about equal weight. Pure.

A group that is much larger than the others is what everything waits for in the end. So the heaviest pieces are placed
first, each into the lightest group.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def divide(items: Sequence[T], weigh: Callable[[T], int], *, most: int, worth: int) -> list[list[T]]:
    """At most so many groups, in a stable order; a group is ``worth`` a task of its own, or there is only one.

    A piece of more than ``worth`` is never divided.
    """
    if not items:
        return []
    weights = [max(0, weigh(item)) for item in items]
    groups = max(1, min(len(items), most, -(-sum(weights) // max(1, worth))))
    heap = [(0, number) for number in range(groups)]
    found: list[list[int]] = [[] for _ in range(groups)]
    for place in sorted(range(len(items)), key=lambda at: (-weights[at], at)):
        filled, number = heapq.heappop(heap)
        found[number].append(place)
        heapq.heappush(heap, (filled + weights[place], number))
    return [[items[place] for place in sorted(group)] for group in found if group]
