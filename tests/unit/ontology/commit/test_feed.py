"""The change feed and tags."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Conflict, Corrupt, Invalid, NotFound
from holdfast.objects.store import OVERWRITE
from holdfast.ontology.bulk.transfer import export_file
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Tags, When, Window, commit_at, window
from holdfast.ontology.chain.state import read_ledger
from holdfast.ontology.feed import Change, Feed
from holdfast.ontology.format import layout
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.sqltables import SqlTables
from tests.unit.ontology.desk import CUSTOMER, PRODUCT, Desk, put


def answer(change: Change) -> tuple[Any, ...]:
    return change.commit_version, change.change_type, change.type_id.name, *change.identity, change.fields["v"]


async def collected(feed: Feed) -> list[Change]:
    return [change async for change in feed.changes()]


async def history(desk: Desk) -> Any:
    writer = desk.committer()
    await put(writer, ("a", 1), ("b", 1))
    await put(writer, ("p", 1), type_id=PRODUCT)
    await put(writer, ("a", 2))
    await put(writer, ("a", None), ("b", 3))
    await put(writer, ("a", 4))
    return writer


ALL = [
    (1, "insert", "Customer", "a", 1),
    (1, "insert", "Customer", "b", 1),
    (2, "insert", "Product", "p", 1),
    (3, "update_preimage", "Customer", "a", 1),
    (3, "update_postimage", "Customer", "a", 2),
    (4, "retract", "Customer", "a", 2),
    (4, "update_preimage", "Customer", "b", 1),
    (4, "update_postimage", "Customer", "b", 3),
    (5, "insert", "Customer", "a", 4),
]


@pytest.mark.parametrize("compacted", [False, True])
async def test_one_answer_is_of_one_moment_between_any_commits(compacted: bool, desk: Desk) -> None:
    await history(desk)
    if compacted:
        await Compactor(desk.store, desk.ambient, fan=2).compact(CUSTOMER)
    for since in range(6):
        expected = [row for row in ALL if row[0] > since]
        assert list(map(answer, await collected(Feed(desk.store, since=since)))) == expected
        for until in range(since, 6):
            feed = Feed(desk.store, since=since, until=until, once=True)
            assert list(map(answer, await collected(feed))) == [row for row in expected if row[0] <= until]
            assert feed.since == until
    assert list(map(answer, await collected(Feed(desk.store, types=[PRODUCT])))) == [ALL[2]]


async def test_a_plain_writer_that_writes_the_same_again_changes_nothing(desk: Desk) -> None:
    for values in ((1,), (1,), (9, 2)):  # of two rows in one commit the last one counts
        await desk.plain.commit({("entity", "Customer"): [("a", {"v": value}) for value in values]})
    found = [
        (change.commit_version, change.change_type, change.fields["v"]) for change in await collected(Feed(desk.store))
    ]
    assert [each for each in found if each[1] != "update_preimage"] == [
        (1, "insert", 1),
        (3, "update_postimage", 9),
        (3, "update_postimage", 2),
    ]


async def test_a_feed_goes_on_where_it_was(desk: Desk) -> None:
    writer = await history(desk)
    feed = Feed(desk.store)
    assert len(await collected(feed)) == len(ALL)
    assert (feed.since, await collected(feed)) == (5, [])
    await put(writer, ("b", 9))
    assert list(map(answer, await collected(feed))) == [
        (6, "update_preimage", "Customer", "b", 3),
        (6, "update_postimage", "Customer", "b", 9),
    ]
    with pytest.raises(NotFound, match="no commit 99"):
        await collected(Feed(desk.store, since=99))


async def test_a_feed_is_followed_live(desk: Desk) -> None:
    writer = await history(desk)
    seen: list[Change] = []
    arrived = asyncio.Event()

    async def listen() -> None:
        async for change in Feed(desk.store, since=5).follow(poll_s=0.001):
            seen.append(change)
            arrived.set()

    task = asyncio.ensure_future(listen())
    await put(writer, ("new", 1))
    await arrived.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert list(map(answer, seen)) == [(6, "insert", "Customer", "new", 1)]


# --- tags ---


async def test_a_tag_names_a_commit(desk: Desk) -> None:
    await history(desk)
    tags = Tags(desk.store, desk.ambient)
    assert (await tags.set("v1.0", 3, by="anna", note="release")).commit_id == 3
    assert (await tags.set("latest", None, by="anna")).commit_id == 5
    assert [(tag.name, tag.commit_id, tag.note) for tag in await tags.all()] == [
        ("latest", 5, ""),
        ("v1.0", 3, "release"),
    ]
    assert (await tags.find("v1.0")).manifest_path.startswith("commits/3-")
    with pytest.raises(Conflict, match="names commit 3 already"):
        await tags.set("v1.0", 4, by="bo")
    assert (await tags.set("v1.0", 4, by="bo", move=True)).commit_id == 4
    await tags.delete("v1.0")
    for work in (tags.find("v1.0"), tags.delete("v1.0"), tags.set("gone", 99, by="bo")):
        with pytest.raises(NotFound):
            await work
    with pytest.raises(Invalid):
        await tags.set("a b", 1, by="bo")


async def test_a_tag_of_another_life_is_refused(desk: Desk) -> None:
    await history(desk)
    tags = Tags(desk.store, desk.ambient)
    await tags.set("v1", 3, by="anna")
    await desk.bare.put(layout.HEAD, b'{"commit_id":0,"manifest_path":null}', OVERWRITE)
    await history(desk)
    with pytest.raises(Corrupt, match="not on the chain"):
        await tags.find("v1")


async def test_a_tag_is_a_moment(tmp_path: Path, desk: Desk) -> None:
    await history(desk)
    await Tags(desk.store, desk.ambient).set("early", 1, by="x")
    chain = Chain(desk.store)
    ledger = await read_ledger(desk.store, chain)
    assert await commit_at("early", chain, ledger) == 1
    assert (await window(When("history", first="early", last="early"), chain, ledger)) == Window(0, 1, True)
    with pytest.raises(Invalid, match="neither a commit nor a time nor a tag"):
        await commit_at("late", chain, ledger)
    done = await export_file(desk.store, "Customer", tmp_path / "c.jsonl", as_of="early")
    assert (done.rows, done.commit_id) == (2, 1)
    async with SqlTables(desk.store, when=When(last="early")) as tables:
        assert (await tables.run("SELECT count(*) AS n FROM Customer")).to_pylist() == [{"n": 2}]
