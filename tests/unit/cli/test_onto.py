"""``holdfast onto`` on a store in a folder, through the real command."""

import asyncio
import json
from pathlib import Path

import pytest

import holdfast
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.session import Ontology, Options
from tests.unit.cli.desk import Desk


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


class Knows(Relation[Customer, Customer]):
    since: Field[int] = Field(default=0)


class OntoDesk(Desk):
    def history(self) -> None:
        async def work() -> None:
            async with holdfast.open(self.uri) as hf, hf.ontology(Customer, Knows, runtime_id="anna") as onto:
                onto.ensure([Customer(id="c1", name="Ada"), Customer(id="c2", name="Bo")])
                await onto.commit(metadata={"why": "first"})
                onto.ensure(Customer(id="c1", name="Ada L."))
                onto.ensure(Knows(left_key="c1", right_key="c2", since=1999))
                await onto.commit()
                onto.retract(Customer, "c2")
                await onto.commit()

        asyncio.run(work())


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> OntoDesk:
    return OntoDesk(tmp_path, capsys)


def test_a_store_is_verified_and_its_indexes_repaired(desk: OntoDesk, tmp_path: Path) -> None:
    desk.history()
    assert desk.json("onto", "verify", "--deep")["findings"] == []
    assert desk.text("onto", "index", "verify").startswith("commit 3: no findings (2 indexes)")
    index = tmp_path / "store" / "meta" / "indices" / "entities" / "Customer.json"
    document = json.loads(index.read_text())
    document["entries"].pop(1)
    index.write_text(json.dumps(document))
    for words in (("verify",), ("index", "verify")):
        said = desk.text("onto", *words, code=1)
        assert "error: index_wrong: meta/indices/entities/Customer.json" in said
        assert "remedy: holdfast onto index repair --apply" in said
    assert "nothing was written" in desk.text("onto", "index", "repair")
    assert desk.text("onto", "verify", code=1)
    (repair,) = desk.json("onto", "index", "repair", "--apply")["repairs"]
    assert (repair["type_name"], len(repair["added"])) == ("Customer", 1)
    assert desk.json("onto", "index", "verify")["good"]
    assert desk.text("onto", "index", "repair", "--apply") == "every index is as it should be\n"


def test_files_are_merged_when_asked_for(desk: OntoDesk) -> None:
    async def work() -> None:
        async with (
            holdfast.open(desk.uri) as hf,
            Ontology(hf.store, hf.ambient, [Customer], Options(compaction=False)) as onto,
        ):
            for number in range(20):
                onto.ensure(Customer(id=f"c{number}", name="Ada"))
                await onto.commit()

    asyncio.run(work())
    assert "nothing was written" in desk.text("onto", "compact")
    planned = desk.json("onto", "compact", "Customer")
    assert (planned["applied"], planned["rewrites"]) == (False, [])
    (merge,) = planned["planned"][0]["merges"]
    assert (merge["min_commit_id"], merge["max_commit_id"], merge["entry_count"]) == (1, 16, 16)
    done = desk.json("onto", "compact", "--apply")
    assert [each["published"] for each in done["rewrites"]] == [True]
    assert 0 < done["write_amplification"] < 1
    assert [each["files"] for each in desk.json("onto", "info")["types"]] == [5]
    assert desk.json("onto", "verify", "--deep")["findings"] == []
    assert "0 snapshots published" in desk.text("onto", "compact", "--apply")
    assert desk.json("onto", "compact", "--whole")["planned"][0]["files_after"] == 2
    desk.text("onto", "compact", "--whole", "--apply")
    assert [each["files"] for each in desk.json("onto", "info")["types"]] == [2], "all below the head, and the head"
    (found,) = desk.json("onto", "verify", "--deep")["findings"]
    assert found["rule"] == "orphan_snapshot", "the one before, for an hour"
    assert "no type Missing" in desk.text("onto", "compact", "Missing", code=4)
    for command in ("compact", "changes --type"):
        assert "did you mean Customer?" in desk.text("onto", *command.split(), "Custmer", code=4)


def test_the_lock_is_shown_and_broken(desk: OntoDesk, tmp_path: Path) -> None:
    assert desk.json("onto", "lock", "show") is None
    assert "no lock to break" in desk.text("onto", "lock", "break", code=4)
    path = tmp_path / "store" / "meta" / "locks" / "ontology_write.json"
    desk.history()
    document = {**json.loads(path.read_bytes()), "owner_id": "gone", "expires_at": "2999-01-01T00:00:00+00:00"}
    path.write_bytes(json.dumps(document).encode())
    shown = desk.json("onto", "lock", "show")
    assert (shown["owner_id"], shown["expired"]) == ("gone", False)
    assert shown["seconds_left"] > 1e6
    assert "the lock of gone is free now" in desk.text("onto", "lock", "break")
    assert desk.json("onto", "lock", "show")["expired"]
    assert "released" in desk.text("onto", "lock", "show")


def test_long_values_and_odd_keys_do_not_flood_a_table(desk: OntoDesk) -> None:
    async def work() -> None:
        async with holdfast.open(desk.uri) as hf, hf.ontology(Customer) as onto:
            onto.ensure([Customer(id="long", name="x" * 100_000), Customer(id="a\nb\x00", name="odd")])
            await onto.commit()
            onto.ensure(Customer(id="long", name="y" * 100_000))
            await onto.commit()

    asyncio.run(work())
    said = desk.text("onto", "commits", "diff", "0", "1")
    assert "xxx..." in said
    assert r"'a\nb\x00'" in said
    assert len(said) < 2_000
    assert len(desk.text("onto", "commits", "diff", "1", "2")) < 2_000
    assert len(desk.json("onto", "commits", "diff", "1", "2")[0]["after"]["name"]) == 100_000


def test_a_type_is_dropped_and_purged(desk: OntoDesk) -> None:
    desk.history()
    shown = desk.json("onto", "schema", "drop", "Customer")
    assert (shown["objects"], shown["relations"], shown["commit_id"]) == (1, ["Knows"], None)
    assert "nothing was written" in desk.text("onto", "schema", "drop", "Customer")
    desk.text("onto", "schema", "drop", "Customer", "--token", "nonsense", code=7)
    done = desk.text("onto", "schema", "drop", "Customer", "--token", shown["token"], "--by", "anna", "--why", "over")
    assert done == "commit 4: Customer is dropped; queries as of commits up to 3 still see it\n"
    assert desk.json("onto", "commits", "show", "4")["metadata"]["drop"]["by"] == "anna"
    assert "commit 4 dropped Customer" in desk.text("sql", "SELECT * FROM Customer", code=4)
    assert len(desk.json("sql", "SELECT * FROM Customer ORDER BY id", "--as-of", "1")) == 2
    shown = desk.json("onto", "schema", "drop", "Customer", "--purge")
    purged = desk.text("onto", "schema", "drop", "Customer", "--purge", "--token", shown["token"])
    assert "its rows are destroyed" in purged
    assert "its rows were purged from all of history" in desk.text(
        "sql", "SELECT * FROM Customer", "--as-of", "1", code=4
    )
    assert desk.json("onto", "verify", "--deep")["good"]


def test_types_are_migrated(desk: OntoDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.history()
    (tmp_path / "newer_types.py").write_text(
        "from holdfast.ontology import Entity, Field, upgrader\n"
        "class Customer(Entity):\n"
        "    id: Field[str] = Field(primary_key=True)\n"
        "    title: Field[str]\n"
        "@upgrader(Customer, from_version=1, to_version=2)\n"
        "def titled(fields):\n"
        "    return {'id': fields['id'], 'title': fields['name'].upper()}\n"
        "TYPES = [Customer]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "not MODULE:TYPES" in desk.text("onto", "migrate", "newer_types", code=2)
    assert "is not an entity or relation type" in desk.text("onto", "migrate", "newer_types:titled", code=2)
    shown = desk.json("onto", "migrate", "newer_types:TYPES")
    assert [(each["type_name"], each["action"], each["rows"]) for each in shown["types"]] == [
        ("Customer", "rewrite", 1)
    ]
    assert f"add --token {shown['token']}" in desk.text("onto", "migrate", "newer_types:TYPES")
    done = desk.text("onto", "migrate", "newer_types:TYPES", "--token", shown["token"])
    assert done == "commit 4: 1 rows were upgraded\n"
    assert desk.json("sql", "SELECT id, title FROM Customer") == [{"id": "c1", "title": "ADA L."}]
    assert [each["version"] for each in desk.json("onto", "schema", "history", "Customer")] == [1, 2]


def test_one_object_is_erased(desk: OntoDesk) -> None:
    desk.history()
    shown = desk.json("onto", "erase", "Customer", "c1")
    assert (shown["rows"], shown["commits"], shown["commit_id"]) == (2, [1, 2], None)
    assert "nothing was written" in desk.text("onto", "erase", "Customer", "c1")
    desk.text("onto", "erase", "Customer", "c1", "--token", "nonsense", code=7)
    assert "nothing to erase" in desk.text("onto", "erase", code=2)
    done = desk.text("onto", "erase", "Customer", "c1", "--token", shown["token"], "--by", "dpo", "--why", "asked for")
    assert done == "commit 4: 2 rows of c1 are erased\n"
    assert [each["id"] for each in desk.json("sql", "SELECT * FROM Customer ORDER BY id", "--as-of", "1")] == ["c2"]
    assert desk.json("onto", "erase", "--resume") == {"finished": [], "removed": []}
    assert "nothing is unfinished" in desk.text("onto", "erase", "--resume")
    assert desk.json("onto", "verify", "--deep")["good"]


def test_what_destroys_or_goes_back_asks_for_a_token_and_says_who_when_and_why(
    desk: OntoDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "greta")
    desk.history()
    assert "nothing to do" in desk.text("onto", "revert", "3")
    words: dict[str, list[str]] = {
        "revert": ["onto", "revert", "1"],
        "erase": ["onto", "erase", "Customer", "c1"],
        "drop": ["onto", "schema", "drop", "Customer", "--purge"],
    }
    for deed, command in words.items():
        head = desk.json("onto", "info")["head"]["commit_id"]
        token = desk.json(*command)["token"]
        desk.text(*command, "--token", "0" * len(token), code=7)
        assert desk.json("onto", "info")["head"]["commit_id"] == head
        desk.text(*command, "--token", token, "--why", "because")
        commit = desk.json("onto", "commits", "show", str(head + 1))
        record, when = commit["metadata"][deed], commit["created_at"]
        assert (record["by"], record["why"], when[:2]) == ("greta", "because", "20")
