"""Compaction of types too large for one machine: merges wherever the engine puts them, one index for each type.

A merge takes neighbours in a type's list of files, at most 64 MiB of them, and makes one snapshot of a span of commits
that no other merge touches. So compacting a type of any size is a number of independent merges, one to a task. Rows are
those of ``holdfast onto compact``, because the code is. The driver publishes all snapshots of a
type in one step. A task that is run twice makes a second file that nothing names, which is swept when it is a day old.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.base.errors import NotFound
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.ontology.maintain import leftovers
from holdfast.ontology.maintain.compact import Compacted, Compactor, Outlook, made_elsewhere, snapshot_task
from holdfast.ontology.types.refs import TypeId
from holdfast.pipeline.engine import Engine
from holdfast.pipeline.write.rows import run_tasks

Say = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Compaction:
    """The merges that were made, or would be."""

    outlooks: Sequence[Outlook]
    done: Sequence[Compacted] = ()
    removed: Sequence[str] = ()
    bytes_read: int = 0

    @property
    def bytes_written(self) -> int:
        return sum(each.size for each in self.done)


async def compact(
    store: Store,
    types: Sequence[str] = (),
    *,
    engine: Engine,
    apply: bool = False,
    say: Say = lambda step, done, total: None,
) -> Compaction:
    """Merge the files of these types, or of all; without ``apply``, only report what would be merged."""
    compactor = Compactor(store, ambient_of(store))
    chosen = _chosen(await compactor.types(), types)
    outlooks = [await compactor.outlook(type_id) for type_id in chosen]
    if not apply:
        return Compaction(outlooks)
    await compactor.begin(each.type_id for each in outlooks if each.merges)
    merges = [merge for outlook in outlooks for merge in outlook.merges]
    work = [
        {"number": number, "type": list(merge.type_id), "span": [merge.first, merge.last]}
        for number, merge in enumerate(merges)
    ]
    rows = await run_tasks(store, engine, "compact", snapshot_task, work, lambda _, n, total: say("merge", n, total))
    made = [await made_elsewhere(store, merges[int(row["number"])], row) for row in rows]
    done: list[Compacted] = []
    for number, outlook in enumerate(outlooks):
        say("publish", number, len(outlooks))
        own = [each for each in made if each.merge.type_id == outlook.type_id]
        done += await compactor.publish(own)
    removed = [*await compactor.sweep(chosen), *await leftovers.sweep(store)]
    return Compaction(outlooks, done, removed, sum(int(row["bytes_read"]) for row in rows))


def _chosen(known: Sequence[TypeId], wanted: Sequence[str]) -> list[TypeId]:
    for name in wanted:
        if name not in {type_id.name for type_id in known}:
            raise NotFound(f"there is no type {name} with rows", remedy="see holdfast onto info")
    return [type_id for type_id in known if not wanted or type_id.name in wanted]
