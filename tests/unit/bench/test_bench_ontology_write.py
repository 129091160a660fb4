"""The benchmark of commits: requests are counted at the server's door, whoever makes them, and it runs."""

import json
import sys
from pathlib import Path

import pytest

import holdfast
from bench.objects.server import s3_server
from bench.ontology_write import __main__ as program
from bench.ontology_write import contenders
from bench.ontology_write.contenders import Customer, key_of
from bench.ontology_write.places import Bucket, Folder
from bench.ontology_write.report import judged
from tests.tidy.tree import leaks


async def test_the_server_counts_what_our_own_store_counts(tmp_path: Path) -> None:
    with s3_server(tmp_path, "bench.ontology_write.counted", buckets=("one", "two")) as address:
        place, other = Bucket(address, "one", tmp_path), Bucket(address, "two", tmp_path)
        before = place.cost()
        async with holdfast.open(place.uri, settings=place.settings) as hf:
            async with hf.ontology(Customer) as onto:
                onto.ensure(Customer(id="c1", name="Ada", tier="gold", seats=1))
                await onto.commit()
            counted = hf.store.usage.requests()
            sent = sum(tally.sent_bytes for tally in hf.store.usage.tallies.values())
        cost = place.cost().since(before)
        assert cost.requests == counted > 0
        assert cost.uploaded >= sent > 0
        assert other.cost().requests == 1, "its own bucket's making"


def test_what_is_new_in_a_folder_is_told_once(tmp_path: Path) -> None:
    place = Folder(tmp_path, "here", tmp_path)
    new = tmp_path / "here" / "deep" / "file"
    new.parent.mkdir()
    new.write_bytes(b"1234")
    assert place.unsynced() == [new]
    assert place.unsynced() == []
    assert place.cost().uploaded == 4


def test_every_other_commit_changes_a_row_that_is_there() -> None:
    keys = [key_of(number) for number in range(40)]
    assert len(set(keys[::2])) == 20
    assert all(keys[number] in keys[:number] for number in range(1, 40, 2))


def test_the_aim_is_about_those_who_upsert() -> None:
    ours = {"milliseconds": 2.0, "requests": 3.0}
    slow, quick = {"milliseconds": 9.0, "requests": 9.0}, {"milliseconds": 1.0, "requests": 2.0}
    assert judged({"10": {"ours": ours, "delta merge": slow, "delta append": quick}}) == {"10": True}
    assert judged({"10": {"ours": ours, "delta merge": slow, "pyiceberg": quick}}) == {"10": False}


def test_it_runs_and_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ontology_write.json"
    monkeypatch.setattr(contenders, "INSTALLED", False)
    monkeypatch.setattr(program, "INSTALLED", False)
    monkeypatch.setattr(sys, "argv", ["bench.ontology_write", "--quick", "--store", "s3", "--out", str(out)])
    program.main()
    said = capsys.readouterr().out
    assert "delta-rs and pyiceberg are not both installed" in said
    assert "writers, 60 ms away" in said
    found = json.loads(out.read_text())["results"]["s3"]
    assert found["commits"]["10"].keys() == {"ours"}
    assert found["commits"]["10"]["ours"]["commits"] == 3
    assert 3 <= found["commits"]["10"]["ours"]["requests"] <= 6, "three commits, one index, and the lock"
    assert found["bulk"]["ours"]["rows"] == 1000
    assert found["contended"]["writers"]["2"]["commits"] == 4
    assert not leaks(out.read_text())
