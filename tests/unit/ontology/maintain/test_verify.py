"""Verify names every broken store by its kind; repair mends what can be mended, and refuses the rest."""

import io
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.audit import Severity
from holdfast.base.errors import Corrupt
from holdfast.objects.layer import Layer
from holdfast.objects.memory import Shelf
from holdfast.objects.store import OVERWRITE, Object
from holdfast.ontology.format import layout
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.maintain.verify.rules import RULES
from holdfast.ontology.maintain.verify.verify import STAGES, Stage, verify, verify_indexes
from tests.tidy.tree import ROOT
from tests.unit.ontology import broken
from tests.unit.ontology.broken import LIBRARY, Broken, sound
from tests.unit.ontology.desk import CUSTOMER, PRODUCT, Desk, put

BY_SNAPSHOT = {"snapshot_wrong"}
"""Shown by a test of its own."""


def kinds(report: Any) -> set[str]:
    return {found.rule.name for found in report.findings}


def bodies(shelf: Shelf) -> dict[str, bytes]:
    return {key: found.body for key, found in shelf.objects.items()}


async def test_a_sound_store_has_no_findings_and_costs_one_read_per_object(desk: Desk) -> None:
    await sound(desk, commits=20)
    stages: list[Stage] = []
    for deep in (False, True):
        desk.spent()
        report = await verify(desk.store, deep=deep, watch=stages.append)
        assert (report.findings, report.good, report.commit_id) == ([], True, 21)
        assert report.checked["commits"] == report.checked["files"] == 21
    # 21 manifests, 21 files, the head, another engine's mark, the ledger; each index read twice; schema objects;
    # the head and the ledger once more, for what was ordered to be destroyed
    spent = desk.spent()
    assert (spent["list"], spent["get"]) == (4, 21 + 21 + 3 + 3 + 4 + 2)
    assert {stage.name for stage in stages} == set(STAGES) - {"snapshots"}
    assert stages[-1].done == stages[-1].total
    assert (await verify_indexes(desk.store)).findings == []
    assert await repair_indexes(desk.store, desk.ambient, apply=True) == []


@pytest.mark.parametrize("case", LIBRARY, ids=str)
async def test_every_broken_store_is_named(case: Broken, desk: Desk) -> None:
    await sound(desk)
    await case.breaks(desk)
    before = bodies(desk.shelf)
    report = await verify(desk.store, deep=case.deep)
    assert case.kind in kinds(report)
    assert report.good is not (RULES[case.kind].severity is Severity.ERROR)
    assert all(found.key and found.message and found.rule.remedy for found in report.findings)
    assert bodies(desk.shelf) == before
    if case.deep:
        assert case.kind not in kinds(await verify(desk.store))


@pytest.mark.parametrize("case", [case for case in LIBRARY if case.mends], ids=str)
async def test_what_can_be_mended_is(case: Broken, desk: Desk) -> None:
    await sound(desk)
    await case.breaks(desk)
    assert case.kind in kinds(await verify_indexes(desk.store))
    before = bodies(desk.shelf)
    planned = await repair_indexes(desk.store, desk.ambient, apply=False)
    assert bodies(desk.shelf) == before
    done = await repair_indexes(desk.store, desk.ambient, apply=True)
    assert [repair.type_id for repair in planned] == [repair.type_id for repair in done] != []
    after = await verify(desk.store, deep=True)
    assert kinds(after) <= {"orphan_snapshot"}  # a plain one, which is no longer named
    assert await desk.reader.latest("entity", "Customer") == {
        **{f"c{key}": {"v": 3 + key} for key in range(3)},
        **{f"d{number}": {"v": number} for number in range(6)},
    }
    assert await repair_indexes(desk.store, desk.ambient, apply=True) == []


@pytest.mark.parametrize("kind", ["head_unreadable", "manifest_unreadable", "manifest_missing"])
async def test_a_broken_chain_is_refused(kind: str, desk: Desk) -> None:
    """Where an index would have to be made from what is lost, nothing is written."""
    await sound(desk)
    await broken.first(kind).breaks(desk)
    for type_id in (CUSTOMER, PRODUCT):
        await desk.bare.delete(layout.index_key(*type_id))
    if "head" not in kind:  # a full manifest above would know all files: take away what it knows them by
        key = broken.manifests(desk)[7]
        await broken.change(desk, key, recent=[])
    before = bodies(desk.shelf)
    with pytest.raises(Corrupt):
        await repair_indexes(desk.store, desk.ambient, apply=True)
    assert bodies(desk.shelf) == before


async def test_all_kinds_have_an_example() -> None:
    assert set(RULES) - {case.kind for case in LIBRARY} == BY_SNAPSHOT


class Racing(Layer):
    """Calls ``race`` before the first read of an index."""

    race: Callable[[], Awaitable[Any]] | None = None

    async def get(self, key: str) -> Object:
        if key.startswith(layout.INDICES) and self.race is not None:
            race, self.race = self.race, None
            await race()
        return await super().get(key)


@pytest.mark.parametrize("race", ["commits", "compaction"])
async def test_what_is_written_during_a_check_is_no_error(race: str) -> None:
    desk = Desk(wrap=Racing)
    await sound(desk, commits=20)

    async def commits() -> None:
        await sound(desk, commits=2)

    async def compaction() -> None:
        assert await Compactor(desk.bare, desk.ambient).compact(CUSTOMER)

    desk.wrapped.race = {"commits": commits, "compaction": compaction}[race]
    assert (await verify(desk.store, deep=True)).good
    assert desk.wrapped.race is None


async def test_below_a_gap_nothing_is_called_an_orphan(desk: Desk) -> None:
    for number in range(5):
        await desk.plain.commit({("entity", "Customer"): [(f"c{number}", {"v": number})]})
    await desk.bare.delete(broken.manifests(desk)[3])
    await broken.attempt_that_lost(desk, commit_id=2)
    await broken.attempt_that_lost(desk, commit_id=5)
    findings = (await verify(desk.store)).findings
    assert [(found.rule.name, found.key[:10]) for found in findings] == [
        ("manifest_missing", "commits/3-"),
        ("orphan_attempt", "commits/5-"),
    ]


async def test_past_a_gap_the_chain_is_taken_up_again_by_skip_pointers(desk: Desk) -> None:
    await sound(desk, commits=20)
    for number in (14, 15):
        await desk.bare.delete(broken.manifests(desk)[number])
    report = await verify(desk.store)
    assert kinds(report) == {"manifest_missing"}
    assert report.checked["commits"] == 21 - 3  # 12 is the nearest that commit 16 points to


def test_the_how_to_lists_every_kind_with_its_severity() -> None:
    page = (ROOT / "docs" / "how-to" / "check-an-ontology.md").read_text(encoding="utf-8")
    listed = {
        name: severity
        for names, severity in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\w+) \|", page, re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }
    assert listed == {rule.name: str(rule.severity) for rule in RULES.values()}


async def test_wrong_ends_and_statistics_of_a_snapshot_are_found_by_a_deep_check(desk: Desk) -> None:
    writer = desk.committer()
    for number in range(20):
        await put(writer, ("c", number), (f"d{number}", 0))
    await Compactor(desk.store, desk.ambient).compact(CUSTOMER)
    (path,) = (key for key in desk.shelf.objects if key.startswith(layout.SNAPSHOTS))
    assert "snapshot_wrong" not in kinds(await verify(desk.store, deep=True))
    honest = desk.shelf.objects[path].body
    table = pq.read_table(io.BytesIO(honest))
    ends = table.column("_until").to_pylist()
    number = table.column_names.index("_until")
    lasting = ends.count(None)
    of_c = f"c of commit 1 ends with commit 7, and should with {ends[lasting]}"
    answer = {(lasting, None): "not in order", (lasting, 7): of_c, (0, 3): "not in order"}
    for (row, end), message in answer.items():
        lying = [end if each == row else said for each, said in enumerate(ends)]
        sink = io.BytesIO()
        pq.write_table(table.set_column(number, "_until", pa.array(lying, pa.int64())), sink)
        await desk.bare.put(path, sink.getvalue(), OVERWRITE)
        (found,) = (
            each for each in (await verify(desk.store, deep=True)).findings if each.rule.name == "snapshot_wrong"
        )
        assert message in found.message
    await desk.bare.put(path, b"PAR1", OVERWRITE)
    assert "snapshot_wrong" in kinds(await verify(desk.store, deep=True))
    await desk.bare.put(path, honest, OVERWRITE)
    index = broken.read(desk, layout.index_key(*CUSTOMER))
    index["entries"][0]["stats"]["keys"] = [["x", "z"]]
    await broken.write(desk, layout.index_key(*CUSTOMER), index)
    assert (await verify(desk.store)).good
    assert kinds(await verify(desk.store, deep=True)) - {"index_absent"} == {"stats_wrong"}
