"""Problems that jobs report to an operator: one object per finding and key, created when it is first seen.

A problem with a batch stays until the batch can be read: each run reads up to ``LOOKED_AT_AGAIN`` of these batches
again, and the next run those that follow. Reports (a clock that is ahead, ranges that overlap, a foreign object) stay
until they are deleted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.clock import iso
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Store
from holdfast.pipeline import layout
from holdfast.telemetry.accept.reconcile import BROKEN, Finding, Problem
from holdfast.telemetry.rollup import layout as derived

AT_ONCE = 16
SHOWN = 100
"""Problems of a kind that are listed."""
LOOKED_AT_AGAIN = 1_000
"""Broken batches per run; more than these are an outage, and take turns."""


@dataclass(frozen=True, slots=True)
class Seen:
    problem: Problem
    first_seen: str

    def document(self) -> Document:
        return {**self.problem.document(), "first_seen": self.first_seen}


async def record(store: Store, ambient: Ambient, problems: Iterable[Problem]) -> None:
    """Record them. One that is there keeps the time at which it was first seen."""
    now = iso(ambient.clock.wall_ns())

    async def one(problem: Problem) -> None:
        body = codec.encode({**Seen(problem, now).document(), "write_id": ambient.ids.write_id()})
        await store.put(layout.problem_key(problem.finding, problem.id), body, CREATE)

    await map_bounded(list(problems), one, limit=AT_ONCE)


async def mended(store: Store, keys: Iterable[str]) -> None:
    """These batches were read: whatever was wrong with them has ended."""
    gone = [layout.problem_key(finding, Problem(finding, key, "").id) for key in keys for finding in sorted(BROKEN)]
    await store.delete_many(gone)


async def mended_hours(store: Store, kind: str, hours: Iterable[int]) -> None:
    """These hours were planned: whatever could not be read can be. One LIST where there is nothing."""
    keys = {layout.problem_key(Finding.CORRUPT_DERIVED, of_hour(kind, hour, "").id) for hour in hours}
    folder = f"{layout.PROBLEMS}{Finding.CORRUPT_DERIVED}/"
    gone = [key async for key in store.keys(folder) if key in keys]
    if gone:
        await store.delete_many(gone)


def of_hour(kind: str, hour: int, message: str) -> Problem:
    """Something that is needed to derive an hour cannot be read. ``kind`` is that of its generations, or a job."""
    return Problem(Finding.CORRUPT_DERIVED, f"{derived.manifest_folder(hour)}{kind}", message)


@dataclass(frozen=True, slots=True)
class Broken:
    """Batches that could not be read, whose turn it is."""

    keys: list[str]
    last: str | None = None
    """After which the next turn begins; None if these are all."""


async def broken(store: Store, after: str | None = None) -> Broken:
    """Batches to be looked at again, from those after ``after`` on and round. One LIST where there are none."""
    ahead: list[str] = []
    behind: list[str] = []
    count = 0
    async for key in store.keys(layout.PROBLEMS):
        if key.removeprefix(layout.PROBLEMS).partition("/")[0] in BROKEN:
            count += 1
            side = ahead if after is None or key > after else behind
            if len(side) < LOOKED_AT_AGAIN:
                side.append(key)
    turn = [*ahead, *behind][:LOOKED_AT_AGAIN]
    found = {each.problem.key for each in await _read(store, turn) if each.problem.finding in BROKEN}
    return Broken(sorted(found), turn[-1] if count > len(turn) else None)


async def of(store: Store, finding: Finding) -> list[Seen]:
    keys: list[str] = []
    async for key in store.keys(f"{layout.PROBLEMS}{finding}/"):
        keys.append(key)
        if len(keys) >= SHOWN:
            break
    return await _read(store, keys)


async def _read(store: Store, keys: list[str]) -> list[Seen]:
    async def one(key: str) -> Seen | None:
        found = await store.find(key)
        if found is None:
            return None
        try:
            document = codec.decode(found.body, key=key)
            return Seen(Problem.of(document), str(document["first_seen"]))
        except (Corrupt, *MALFORMED) as error:  # it is shown, and hides no other
            detail = f"not a recorded problem ({error})"
            return Seen(Problem(Finding.FOREIGN_OBJECT, key, detail), iso(found.modified_ns))

    return [each for each in await map_bounded(keys, one, limit=AT_ONCE) if each is not None]


async def every(store: Store) -> list[Seen]:
    """The first of each kind."""
    return [each for finding in Finding for each in await of(store, finding)]


async def count(store: Store) -> dict[str, int]:
    """How many there are of each kind, from a listing alone."""
    found = {str(finding): 0 for finding in Finding}
    async for key in store.keys(layout.PROBLEMS):
        finding = key.removeprefix(layout.PROBLEMS).partition("/")[0]
        if finding in found:
            found[finding] += 1
    return {finding: number for finding, number in found.items() if number}
