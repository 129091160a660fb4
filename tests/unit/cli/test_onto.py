"""``holdfast onto`` on a store in a folder, through the real command."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.main import run
from holdfast.ontology import Entity, Field, Relation


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


class Knows(Relation[Customer, Customer]):
    since: Field[int] = Field(default=0)


class OntoDesk:
    def __init__(self, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.uri = uri
        self._capsys = capsys

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

    def json(self, *words: str) -> Any:
        assert run([*words, "--store", self.uri, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def text(self, *words: str, code: int = 0) -> str:
        assert run([*words, "--store", self.uri]) == code
        captured = self._capsys.readouterr()
        return captured.out + captured.err


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> OntoDesk:
    return OntoDesk(f"file:{tmp_path / 'store'}", capsys)


def test_an_empty_ontology_is_made_once(desk: OntoDesk) -> None:
    assert desk.json("onto", "init") == {"created": True, "commit_id": 0}
    assert desk.json("onto", "init") == {"created": False, "commit_id": 0}
    assert desk.json("onto", "info")["head"]["commit_id"] == 0
    assert desk.json("onto", "commits", "list") == []
    desk.history()
    assert "already, at commit 3" in desk.text("onto", "init")


def test_info_has_head_files_lag_and_lock(desk: OntoDesk) -> None:
    desk.history()
    info = desk.json("onto", "info")
    assert info["head"]["commit_id"] == 3
    assert [(each["type_name"], each["files"], each["index_lag"], each["advice"]) for each in info["types"]] == [
        ("Customer", 3, 0, None),
        ("Knows", 1, 0, None),
    ]
    assert (info["index_lag"], info["last_index_warning"]) == (0, None)
    assert (info["lock"]["owner_id"], info["lock"]["expired"]) == ("anna", True)
    assert "commit 3" in desk.text("onto", "info")


def test_an_index_that_lies_is_reported(desk: OntoDesk, tmp_path: Path) -> None:
    desk.history()
    path = tmp_path / "store" / "meta" / "indices" / "entities" / "Customer.json"
    document = json.loads(path.read_bytes())
    path.write_bytes(json.dumps({**document, "entries": document["entries"][1:]}).encode())
    assert "does not list the files" in desk.json("onto", "info")["last_index_warning"]
    path.write_bytes(json.dumps({**document, "max_indexed_commit": 1, "entries": document["entries"][:1]}).encode())
    info = desk.json("onto", "info")
    assert "lags" in info["last_index_warning"]
    assert info["index_lag"] == 2


def test_commits_are_listed_shown_and_compared(desk: OntoDesk) -> None:
    desk.history()
    assert [each["commit_id"] for each in desk.json("onto", "commits", "list")] == [3, 2, 1]
    assert [each["commit_id"] for each in desk.json("onto", "commits", "list", "--before", "3", "--limit", "1")] == [2]
    shown = desk.json("onto", "commits", "show", "1")
    assert (shown["runtime_id"], shown["metadata"], shown["registered"]) == (
        "anna",
        {"why": "first"},
        ["entity/Customer", "relation/Knows"],
    )
    changes = desk.json("onto", "commits", "diff", "1", "3")
    assert [(each["change"], each["type_name"], each["key"]) for each in changes] == [
        ("changed", "Customer", ["c1"]),
        ("retracted", "Customer", ["c2"]),
        ("added", "Knows", ["c1", "c2", ""]),
    ]
    assert changes[0]["before"]["name"] == "Ada"
    assert changes[0]["after"]["name"] == "Ada L."
    assert "name: 'Ada' to 'Ada L.'" in desk.text("onto", "commits", "diff", "1", "2")
    assert [each["change"] for each in desk.json("onto", "commits", "diff", "0", "1")] == ["added", "added"]
    assert "there is no commit 9" in desk.text("onto", "commits", "show", "9", code=4)
    assert "older one first" in desk.text("onto", "commits", "diff", "2", "1", code=2)


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
    assert "expired" in desk.text("onto", "lock", "show")


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
