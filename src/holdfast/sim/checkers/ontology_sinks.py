"""Batches of a sink, judged by the commits that became visible: each at most once, in their order, as was told."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.sim.checkers.ontology import Course
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done, Operation

ONCE = "a batch is committed once"
IN_ORDER = "batches are committed in their order"
TOLD = "what a driver is told of a batch is so"

Batch = tuple[str, int]


def batches(found: Course) -> dict[Batch, list[int]]:
    """The commits that say whose batch they are."""
    commits: dict[Batch, list[int]] = defaultdict(list)
    for step in found.steps:
        sink = (step.manifest.get("metadata") or {}).get("sink")
        if sink is not None:
            commits[sink["query"], sink["batch"]].append(step.commit_id)
    return commits


def committed_once(found: Course) -> Iterator[Violation]:
    last: dict[str, int] = {}
    for (query, batch), commits in sorted(batches(found).items(), key=lambda item: item[1]):
        if len(commits) > 1:
            yield Violation(ONCE, f"batch {batch} of {query} is in commits {', '.join(map(str, commits))}")
        if batch <= last.get(query, -1):
            yield Violation(IN_ORDER, f"batch {batch} of {query} came after batch {last[query]}")
        last[query] = batch


def told_truly(operations: Iterable[Operation], found: Course) -> Iterator[Violation]:
    """A driver that was told of a commit finds its batch there, or a later one of the same query."""
    commits = {commit: batch for batch, listed in batches(found).items() for commit in listed}
    for operation in operations:
        if operation.call != "load" or not isinstance(operation.outcome, Done) or operation.outcome.value is None:
            continue
        argument: Any = operation.argument
        query, batch = argument
        number: Any = operation.outcome.value
        told = commits.get(number)
        if told is None or told[0] != query or told[1] < batch:
            yield Violation(TOLD, f"of batch {batch} of {query} commit {number} was told")
