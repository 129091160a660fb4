"""Forks: the source's lines up to a point, verbatim, and what they refer to kept safe."""

import pytest

from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.runs.admin.delete import delete
from holdfast.runs.admin.fork import fork
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.payload import get_payload, put_payload
from holdfast.runs.journal.segments import SegmentPolicy
from tests.unit.runs.journals import TINY, Archive, step


async def source(archive: Archive, *, payload: bool = False, steps: int = 3) -> None:
    journal = await archive.begin("s", version="1", input=7, policy=TINY if steps > 3 else None)
    for number in range(steps):
        await journal.append(step(number))
    if payload:
        reference = await put_payload(archive.store, archive.ambient, "s", b"large")
        await journal.append(Draft("step", {"stepId": "big", "payload": reference}))
    await journal.append(Draft("complete", {}))


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ({"from_offset": 1}, 1),
        ({"from_offset": 3}, 3),
        ({"from_offset": 5}, 5),
        ({"from_step": "s1"}, 2),
        ({"after_step": "s1"}, 3),
    ],
)
async def test_lines_before_the_point_are_copied_and_a_start_follows(choice: dict, kept: int) -> None:
    archive = Archive()
    await source(archive)
    before = archive.body("s")
    forked = await fork(archive.store, "s", new_run_id="f", **choice)
    assert (forked.run_id, forked.source, forked.from_offset) == ("f", "s", kept)
    assert archive.lines("f")[:-1] == archive.lines("s")[:kept]
    state = (await archive.history("f")).state
    assert state == forked.state
    assert (state.status, state.session, state.detached) == ("open", 2, True)
    assert (state.source, state.version, state.start["input"]) == ({"runId": "s", "fromOffset": kept}, "1", 7)
    assert archive.body("s") == before
    assert archive.keys("runs/s/") == ["runs/s/journal.jsonl"]  # nothing shared, nothing registered


async def test_a_fork_goes_on_by_itself() -> None:
    archive = Archive()
    await source(archive)
    forked = await fork(archive.store, "s", after_step="s0", version="2")
    journal = await archive.begin(forked.run_id)
    await journal.append(step("other"))
    assert (journal.session, journal.state.version, journal.state.detached) == (3, "2", False)
    assert len(archive.lines("s")) == 5


@pytest.mark.parametrize(
    "policy", [TINY, SegmentPolicy(lines=2, size=1, fan_in=3, largest=600), SegmentPolicy(lines=1000)]
)
async def test_a_long_source_is_copied_into_segments_of_the_fork(
    policy: SegmentPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runs.admin.fork.POLICY", policy)
    archive = Archive()
    await source(archive, steps=20)
    await fork(archive.store, "s", new_run_id="f", from_offset=19)
    copied = await archive.history("f")
    assert copied.lines[:19] == (await archive.history("s")).lines[:19]
    assert bool(copied.refs) == (policy.lines == 2)
    assert all(key.startswith("runs/f/") for key in archive.keys("runs/f/segments"))
    journal = await archive.begin("f")
    await journal.append(step("more"))
    assert (await archive.history("f")).entries == journal.history.entries


async def test_a_fork_that_shares_a_payload_is_registered_with_its_owner() -> None:
    archive = Archive()
    await source(archive, payload=True)
    await fork(archive.store, "s", new_run_id="f", after_step="big")
    await fork(archive.store, "f", new_run_id="g", after_step="big")
    await fork(archive.store, "s", new_run_id="h", after_step="s1")
    assert archive.keys("/forks/") == ["runs/s/forks/f.json", "runs/s/forks/g.json"]
    entry = (await archive.history("g")).entries[4]
    assert await get_payload(archive.store, entry.fields["payload"]) == b"large"


@pytest.mark.parametrize("choice", [{}, {"from_offset": 1, "from_step": "s0"}, {"from_offset": 0}, {"from_offset": 6}])
async def test_a_point_that_is_none_is_refused(choice: dict) -> None:
    archive = Archive()
    await source(archive)
    with pytest.raises(Invalid) as refused:
        await fork(archive.store, "s", **choice)
    assert refused.value.remedy
    assert archive.keys("journal") == ["runs/s/journal.jsonl"]


async def test_unknown_runs_steps_and_taken_names() -> None:
    archive = Archive()
    with pytest.raises(NotFound):
        await fork(archive.store, "s", from_offset=1)
    await source(archive)
    with pytest.raises(NotFound, match="no step 'x'"):
        await fork(archive.store, "s", from_step="x")
    before = archive.body("s")
    with pytest.raises(Refused, match="run s exists already"):
        await fork(archive.store, "s", new_run_id="s", from_offset=1)
    assert archive.body("s") == before
    await delete(archive.store, "s")
    with pytest.raises(NotFound):
        await fork(archive.store, "s", from_offset=1)


async def test_a_source_deleted_meanwhile_is_noticed() -> None:
    class DeletedMeanwhile(MemoryStore):
        deleting = False

        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if "/forks/" in key and not self.deleting:
                self.deleting = True  # the deleter is faster than the registration
                await delete(archive.store, "s")
            return await super().put(key, body, mode)

    archive = Archive(DeletedMeanwhile())
    await source(archive, payload=True)
    with pytest.raises(NotFound, match="deleted or began a new history"):
        await fork(archive.store, "s", new_run_id="f", after_step="big")
    assert await archive.backend.find("runs/f/journal.jsonl") is None
