"""The floor: what a run writes and reads for its journal, as bare requests.

The requests are recorded once, from a run on a store in memory, and then made again with a bare client: the same bytes
in the same order, nothing in between. Left out are requests that found nothing, and those for the derived index, which
are ours to answer for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.objects.clients import Plan, Step
from bench.runs.work import Workload
from holdfast.base.ids import Ambient
from holdfast.objects import IfMatch, Lost, Object, StoreSpec, Written
from holdfast.objects.client import Client
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Mode

RUN_ID = "r"
FOLDER = f"runs/{RUN_ID}/"


@dataclass(frozen=True)
class Floor:
    """``run`` leads from nothing to success; ``resume`` from what was ``left`` of an unfinished run to success."""

    run: tuple[Step, ...]
    left: tuple[Step, ...]
    resume: tuple[Step, ...]


class Recorder(Layer):
    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.noted: list[Step] = []

    async def get(self, key: str) -> Object:
        found = await self.inner.get(key)
        self._note(Step("get", key))
        return found

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await self.inner.put(key, body, mode)
        self._note(Step("replace" if isinstance(mode, IfMatch) else "create", key, body))
        return outcome

    def _note(self, step: Step) -> None:
        if step.key.startswith(FOLDER):
            self.noted.append(step)


async def record(steps: int) -> Floor:
    workload = Workload()
    store, recorder, _ = _recording()
    await workload.run(store, RUN_ID, steps)
    run = tuple(recorder.noted)

    store, recorder, memory = _recording()
    await workload.leave_unfinished(store, RUN_ID, steps)
    there = [found for key, found in memory.shelf.objects.items() if key.startswith(FOLDER)]
    recorder.noted.clear()
    await workload.run(store, RUN_ID, steps)
    read = {step.key for step in recorder.noted}
    left = tuple(Step("create", found.key, found.body) for found in there if found.key in read)
    return Floor(run, left, tuple(recorder.noted))


def _recording() -> tuple[Client, Recorder, MemoryStore]:
    ambient, memory = Ambient.system(), MemoryStore()
    recorder = Recorder(memory)
    return Client(recorder, ambient=ambient, spec=StoreSpec("memory", "floor")), recorder, memory


def plans(part: Sequence[Step], number: int, *, at_once: bool) -> list[Plan]:
    """The requests under keys of their own, one after the other; ``at_once``: but the segments at the same time."""
    steps = [Step(step.verb, step.key.replace(FOLDER, f"runs/{number}/"), step.body) for step in part]
    segments = [step for step in steps if step.verb == "get" and "/segments/" in step.key]
    if not at_once or len(segments) < 2:
        return [[steps]]
    first, *rest = [step for step in steps if step not in segments]
    return [[[first]], [[step] for step in segments], [rest]]
