"""However a history was appended and sealed, it reads back as the same lines."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.segments import Ref, SegmentPolicy, joined, plan_seal
from tests.unit.runs.journal.journals import Archive, step

policies = st.builds(
    SegmentPolicy,
    lines=st.integers(1, 5),
    size=st.integers(1, 600),
    fan_in=st.integers(2, 4),
    largest=st.sampled_from([1, 500, 2_000, 1 << 30]),
)


@given(policies, st.lists(st.integers(0, 300), max_size=120))
def test_seals_cover_every_line_once(policy: SegmentPolicy, sizes: list[int]) -> None:
    refs: tuple[Ref, ...] = ()
    tail: list[int] = []
    for number, size in enumerate(sizes, 1):
        tail.append(size)
        if len(tail) >= policy.lines and sum(tail) >= policy.size:
            seal = plan_seal(policy, refs, number, sum(tail))
            absorbed = refs[len(seal.kept) :]
            whole = sum(tail) + sum(ref.size for ref in absorbed)
            refs = (*seal.kept, Ref(seal.level, seal.first, seal.end - seal.first, whole, "a", "h"))
            tail = []
            assert joined(refs)
            assert refs[-1].end == number
            assert whole <= policy.largest or not absorbed
    if policy.largest == 1 << 30:
        levels = [ref.level for ref in refs]
        assert levels == sorted(levels, reverse=True)
        assert all(levels.count(level) < policy.fan_in for level in levels)


@given(
    st.lists(st.sampled_from(["step", "step", "step", "group", "session", "renew", "foreign"]), max_size=40),
    policies,
    st.integers(0, 1000),
)
async def test_any_course_of_a_run_reads_back(script: list[str], policy: SegmentPolicy, seed: int) -> None:
    archive = Archive(seed=seed)
    rng = random.Random(seed)
    journal = await archive.begin(policy=policy)
    lines = list(journal.history.lines)
    for number, word in enumerate(script):
        text = "x" * rng.randint(0, 200)
        match word:
            case "step":
                await journal.append(step(number, text))
            case "group":
                await journal.append(step(f"{number}a", text), step(f"{number}b"), step(f"{number}c"))
            case "session":
                history = await read_history(archive.store, "r")
                journal = await Journal.begin(archive.store, archive.ambient, "r", history, {}, policy=policy)
            case "renew":
                await journal.continue_as_new({}, [Draft("step", {"stepId": f"{number}"})])
                lines = []
            case "foreign":
                foreign = {"type": "step", "session": journal.session, "offset": len(lines)}
                line = json.dumps({"timestamp": "2026-01-01T00:00:00Z", **foreign}).encode()
                await archive.backend.put("runs/r/journal.jsonl", archive.body() + line)
                await journal.append(step(number))
                assert journal.history.lines[len(lines)] == line + b"\n"
        assert journal.history.lines[: len(lines)] == lines
        lines = list(journal.history.lines)
        found = await archive.history()
        assert found.lines == lines
        assert (found.entries, found.refs, found.state) == (
            journal.history.entries,
            journal.history.refs,
            journal.history.state,
        )
