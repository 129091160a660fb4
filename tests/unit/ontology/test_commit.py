"""The commit protocol over a real store: what is visible, at what price, and what others make of it."""

import asyncio
import json

import pytest

from holdfast.base.errors import Ambiguous, Conflict, Corrupt, Incompatible, Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, NotModified, Object, Store, Version, Written
from holdfast.ontology.format.data.batch import Absent, AtCommit, Equal, digest
from tests.unit.ontology.desk import CUSTOMER, OWNS, PRODUCT, TYPES, Desk, intent, put, stored_type


async def test_a_warm_commit_of_one_type_is_three_requests_whatever_came_before() -> None:
    desk = Desk()
    writer = desk.committer()
    await put(writer, ("c1", 0), ("c2", 0))
    await put(writer, ("p1", 0), type_id=PRODUCT)
    desk.spent()
    for number in range(1, 140):
        await put(writer, ("c1", number))
        assert desk.spent() == {"put": 3}, number
    await put(writer, *((f"c{key}", 1) for key in range(2_000)))
    assert desk.spent() == {"put": 3}
    writer.queue += [intent("c1", "x"), intent("p1", "x", PRODUCT)]
    await writer.commit()
    assert desk.spent() == {"put": 4}


async def test_a_plain_reader_sees_what_was_committed_as_of_every_commit() -> None:
    desk = Desk()
    writer = desk.committer()
    first = await put(writer, ("c1", 1), ("c2", 1), metadata={"why": "first"})
    writer.queue += [intent("c1", 2), intent("c1|p1|", {"seats": 2}, OWNS)]
    second = await writer.commit()
    assert second is not None
    assert (first.commit_id, first.rows, second.commit_id, second.rows) == (1, 2, 2, 2)
    assert await desk.reader.latest("entity", "Customer") == {"c1": {"v": 2}, "c2": {"v": 1}}
    assert await desk.reader.latest("entity", "Customer", as_of=1) == {"c1": {"v": 1}, "c2": {"v": 1}}
    assert await desk.reader.latest("relation", "Owns") == {("c1", "p1", ""): {"v": {"seats": 2}}}
    manifests = await desk.reader.chain(second.manifest_path)
    assert [(m["commit_id"], m["parent_commit_id"], m["metadata"]) for m in manifests] == [
        (2, 1, {}),
        (1, None, {"why": "first"}),
    ]
    assert manifests[0]["created_at"] > manifests[1]["created_at"]


async def test_what_changes_nothing_commits_nothing() -> None:
    desk = Desk()
    writer = desk.committer()
    await put(writer, ("c1", 1))
    desk.spent()
    assert await put(writer, ("c1", 1)) is None
    assert desk.spent() == {"get": 1}
    assert writer.queue == []
    assert await writer.commit() is None
    assert desk.spent() == {}


async def test_nothing_to_do_is_believed_only_as_of_now() -> None:
    desk = Desk()
    writer, other = desk.committer(), desk.committer()
    await put(writer, ("c1", 1))
    await put(other, ("c1", 2))
    again = await put(writer, ("c1", 1))
    assert again.commit_id == 3
    assert await desk.reader.latest("entity", "Customer") == {"c1": {"v": 1}}


async def test_of_one_identity_the_last_intent_wins_once() -> None:
    desk = Desk()
    writer = desk.committer()
    commit = await put(writer, ("c1", 1), ("c2", 1), ("c1", 2), ("c1", 3))
    assert commit.rows == 2
    assert await desk.reader.latest("entity", "Customer") == {"c1": {"v": 3}, "c2": {"v": 1}}
    assert await put(writer, ("c1", 9), ("c1", 3)) is None


async def test_a_loser_rebases_and_what_has_become_a_no_op_commits_nothing() -> None:
    desk = Desk()
    anna, bert = desk.committer(), desk.committer()
    await put(anna, ("c1", 0))
    await put(bert, ("c2", 0))
    await put(anna, ("c1", 1), ("c3", 1))
    assert await put(bert, ("c3", 1)) is None
    commit = await put(bert, ("c3", 1), ("c1", 2))
    assert (commit.commit_id, commit.rows) == (4, 1)


async def test_a_lost_race_is_won_later_and_its_attempt_is_removed() -> None:
    desk = Desk()
    anna, bert = desk.committer(), desk.committer()
    await put(anna, ("c1", 0))
    await put(bert, ("c2", 0))
    await put(anna, ("c1", 1))
    desk.spent()
    commit = await put(bert, ("c2", 1))
    assert commit.commit_id == 4
    folders = {key.split("/")[1] for key in desk.shelf.objects if key.startswith("commits/")}
    assert len(folders) == 4
    # Three writes in vain, the head and the rival's manifest and file read, two deletes, three writes.
    assert desk.spent() == {"put": 6, "get": 3, "delete": 2}


async def test_expectations_refuse_a_rebase_over_what_was_read() -> None:
    desk = Desk()
    anna, bert = desk.committer(), desk.committer()
    await put(anna, ("c1", 1))
    await put(bert, ("c1", 2))
    for expect in (AtCommit(1), Equal(digest('{"v":1}')), Absent()):
        anna.queue.append(intent("c1", 3, expect=expect))
        with pytest.raises(Conflict, match="Customer 'c1'"):
            await anna.commit()
        assert anna.discard() == 1
    anna.queue.append(intent("c1", 3, expect=AtCommit(2)))
    assert (await anna.commit()) is not None
    anna.queue.append(intent("c9", 1, expect=Absent()))
    assert (await anna.commit()) is not None


async def test_if_head_refuses_any_rebase_and_keeps_the_intents() -> None:
    desk = Desk()
    anna, bert = desk.committer(), desk.committer()
    await put(anna, ("c1", 1), if_head=0)
    await put(bert, ("c2", 2))
    with pytest.raises(Conflict, match="head is commit 2, and commit 1 was expected"):
        await put(anna, ("c1", 3), if_head=1)
    assert len(anna.queue) == 1
    commit = await anna.commit(if_head=2)
    assert commit is not None
    assert commit.commit_id == 3


async def test_a_retracted_row_keeps_its_fields_and_can_come_back() -> None:
    desk = Desk()
    writer = desk.committer()
    await put(writer, ("c1", 1), ("c2", 1))
    assert (await put(writer, ("c1", None))).rows == 1
    assert await put(writer, ("c1", None), ("c9", None)) is None
    assert (await desk.reader.latest("entity", "Customer"))["c1"] == {"v": 1}
    other = desk.committer()
    assert await put(other, ("c1", None)) is None
    assert (await put(other, ("c1", 1))).commit_id == 3


async def test_a_type_is_registered_with_its_first_rows_and_drift_is_refused() -> None:
    desk = Desk()
    writer = desk.committer(types={CUSTOMER: stored_type(CUSTOMER)})
    commit = await put(writer, ("c1", 1))
    manifest = json.loads(desk.shelf.objects[commit.manifest_path].body)
    assert manifest["schemas"]["entity"] == {"Customer": [1, stored_type(CUSTOMER).schema_hash, 1, 1]}
    assert manifest["registered"][0]["schema"] == {"entity_name": "Customer", "fields": {}}
    drifted = desk.committer(types={CUSTOMER: stored_type(CUSTOMER, "more")})
    with pytest.raises(Incompatible, match="more is new"):
        await put(drifted, ("c1", 2))
    assert len(drifted.queue) == 1


async def test_a_warm_writer_meets_a_schema_that_was_registered_since() -> None:
    desk = Desk()
    warm = desk.committer(types={CUSTOMER: TYPES[CUSTOMER], PRODUCT: stored_type(PRODUCT, "old")})
    await put(warm, ("c1", 1))
    other = desk.committer(types={CUSTOMER: TYPES[CUSTOMER], OWNS: TYPES[OWNS]})
    await put(other, ("c1|p1|", 1), type_id=OWNS)
    with pytest.raises(Incompatible):
        await put(desk.committer(types={PRODUCT: stored_type(PRODUCT, "new")}), ("p1", 1), type_id=PRODUCT)


class Cut(Layer):
    """Loses the answer to one write of the head, which lands or does not."""

    def __init__(self, inner: Store, *, lands: bool, times: int = 1) -> None:
        super().__init__(inner)
        self.lands = lands
        self.times = times
        self.armed = False

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if not (self.armed and self.times and key == "meta/head.json"):
            return await super().put(key, body, mode)
        self.times -= 1
        if self.lands:
            await super().put(key, body, mode)
        raise Unavailable("no answer came", maybe_applied=True)

    async def get(self, key: str) -> Object:
        self._cut(key)
        return await super().get(key)

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        self._cut(key)
        return await super().get_unless(key, version)

    def _cut(self, key: str) -> None:
        if self.armed and self.times and key == "meta/head.json":
            self.times -= 1
            raise Unavailable("no answer came")


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("others", [0, 1, 70])
async def test_an_open_outcome_is_found_on_the_chain_or_tried_again_never_twice(lands: bool, others: int) -> None:
    cuts: list[Cut] = []

    def wrap(inner: Store) -> Store:
        cuts.append(Cut(inner, lands=lands, times=1_000))
        return cuts[0]

    desk = Desk(wrap=wrap)
    writer, rival = desk.committer(), desk.committer()
    await put(writer, ("c1", 0))
    cuts[0].armed = True
    with pytest.raises(Ambiguous):
        await put(writer, ("c1", 1))
    cuts[0].armed = False
    for number in range(others):
        await put(rival, ("c2", number))
    assert len(writer.queue) == 1
    commit = await writer.commit()
    assert commit is not None
    assert commit.commit_id == (2 if lands else 2 + others)
    assert writer.queue == []
    assert (await desk.reader.head())["commit_id"] == 2 + others
    assert (await desk.reader.latest("entity", "Customer"))["c1"] == {"v": 1}


async def test_a_cancelled_commit_is_settled_by_the_next() -> None:
    desk = Desk()
    writer = desk.committer()
    await put(writer, ("c1", 0))
    held = asyncio.Event()

    class Slow(MemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            outcome = await super().put(key, body, mode)
            if key == "meta/head.json" and not held.is_set():
                held.set()
                await asyncio.sleep(60)
            return outcome

    writer._store = Slow(desk.shelf)
    task = asyncio.ensure_future(put(writer, ("c1", 1)))
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    commit = await writer.commit()
    assert commit is not None
    assert commit.commit_id == 2
    assert (await desk.reader.head())["commit_id"] == 2


async def test_a_failure_before_the_head_leaves_nothing_visible_and_the_intents_queued() -> None:
    desk = Desk()

    class Down(MemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if key.endswith("manifest.json"):
                raise Unavailable("503")
            return await super().put(key, body, mode)

    writer = desk.committer()
    await put(writer, ("c1", 0))
    whole, writer._store = writer._store, Down(desk.shelf)
    with pytest.raises(Unavailable, match="commit 2 was not made"):
        await put(writer, ("c1", 1))
    writer._store = whole
    assert (await desk.reader.head())["commit_id"] == 1
    assert not [key for key in desk.shelf.objects if key.startswith("commits/2-")]
    assert (await writer.commit()) is not None


async def test_many_writers_on_one_head_lose_and_double_nothing() -> None:
    desk = Desk()

    async def work(name: int) -> None:
        writer = desk.committer()
        for turn in range(5):
            assert await put(writer, (f"c{name}", turn)) is not None

    await asyncio.gather(*(work(name) for name in range(8)))
    head = await desk.reader.head()
    assert head["commit_id"] == 40
    chain = await desk.reader.chain(head["manifest_path"])
    assert [manifest["commit_id"] for manifest in chain] == list(range(40, 0, -1))
    assert {manifest["runtime_id"] for manifest in chain} == {f"writer{n}" for n in range(1, 9)}


async def test_a_store_of_a_plain_writer_is_read_extended_and_read_back() -> None:
    desk = Desk()
    for number in range(40):
        await desk.plain.commit({("entity", "Customer"): [(f"c{number % 7}", {"v": number})]})
    writer = desk.committer()
    assert await put(writer, ("c4", 39)) is None
    commit = await put(writer, ("c4", 39), ("c5", "ours"))
    assert (commit.commit_id, commit.rows) == (41, 1)
    await desk.plain.commit({("entity", "Customer"): [("c5", {"v": "theirs"})]})
    assert await put(writer, ("c5", "theirs")) is None
    assert (await put(writer, ("c5", "ours"))).commit_id == 43
    latest = await desk.reader.latest("entity", "Customer")
    assert latest["c5"] == {"v": "ours"}
    assert len(latest) == 7


async def test_a_store_that_was_made_anew_stops_a_living_session() -> None:
    desk = Desk()
    writer = desk.committer()
    await put(writer, ("c1", 0))
    await put(writer, ("c1", 1))
    for key in list(desk.shelf.objects):
        desk.shelf.remove(key)
    await put(desk.committer(), ("c1", 5))
    with pytest.raises(Corrupt, match="does not follow"):
        await put(writer, ("c1", 2))
    assert len(writer.queue) == 1
