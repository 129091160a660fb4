"""``holdfast onto query`` on a store in a folder, through the real command."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.main import run
from holdfast.cli.rows import _plain
from holdfast.ontology import Entity, Field, Relation


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int]
    profile: Field[dict[str, str]] = Field(default_factory=dict)


class Knows(Relation[Customer, Customer]):
    since: Field[int] = Field(default=0)


class Past(Entity):
    id: Field[str] = Field(primary_key=True)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    address = f"file:{tmp_path / 'store'}"

    async def work() -> None:
        async with holdfast.open(address) as hf, hf.ontology(Customer, Knows) as onto:
            onto.ensure([Customer(id="a", age=30, profile={"city": "Rome"}), Customer(id="b", age=40)])
            onto.ensure(Knows(left_key="a", right_key="b", since=1999))
            await onto.commit()
            onto.ensure(Customer(id="b", age=41))
            await onto.commit()

    asyncio.run(work())
    return address


def test_questions_in_words(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str) -> Any:
        assert run(["onto", "query", *words, "--store", uri, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert asked("Customer", "--where", "age > 40") == [{"id": "b", "age": 41, "profile": {}}]
    assert asked("Customer", "--where", 'profile.city == "Rome"')[0]["profile"] == {"city": "Rome"}
    assert asked("Customer", "--as-of", "1", "--order-by", "age desc", "--columns", "id,age") == [
        {"id": "b", "age": 40},
        {"id": "a", "age": 30},
    ]
    assert asked("Customer", "--history", "--columns", "id", "--offset", "2") == [
        {"id": "b", "commit_id": 2, "retracted": False}
    ]
    assert asked("Customer", "--since", "1", "--count") == [{"count": 1}]
    assert asked("Knows", "--where", "right.age == 41 and since < 2000", "--order-by", "left.age") == [
        {"left_key": "a", "right_key": "b", "since": 1999}
    ]
    explained = asked("Customer", "--where", 'id == "a"', "--explain")
    assert [file["use"] for file in explained["tables"][0]["files"]] == ["rows", "pruned"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("19.900000000000000000", "19.9"),
        ("5.000000000000000000", "5"),
        ("0E-18", "0"),
        ("1.50", "1.50"),
        ("1E+3", "1E+3"),
        ("100", 100),
    ],
)
def test_decimals_have_the_places_that_they_need(text: str, shown: str | int) -> None:
    assert _plain(Decimal(text)) == shown


def test_rows_as_text(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["onto", "query", "Customer", "--limit", "1", "--store", uri]
    assert run([*words, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["id,age,profile", 'a,30,"{""city"":""Rome""}"']
    assert run([*words, "--profile"]) == 0
    assert "state, commits 1 to 2 of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["Customr"], 4, "there is no type Customr"),
        (["Customer", "--where", "aeg > 3"], 2, "did you mean age?"),
        (["Customer", "--where", 'age > "x"'], 2, "age"),
        (["Customer", "--where", "age >"], 2, "expected"),
        (["Customer", "--columns", "idd"], 2, "did you mean id?"),
        (["Customer", "--order-by", "age up"], 2, "is not an order"),
        (["Customer", "--since", "1", "--between", "1", "2"], 2, "two kinds"),
    ],
)
def test_mistakes(uri: str, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str) -> None:
    assert run(["onto", "query", *words, "--store", uri]) == code
    assert message in capsys.readouterr().err


def test_figures_groups_hops_and_differences_in_words(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str) -> Any:
        assert run(["onto", "query", *words, "--store", uri, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    every = ("--agg", "n=count()", "--agg", "avg(age)", "--agg", "old=count_where(age > 40)")
    assert asked("Customer", *every) == [{"n": 2, "avg_age": 35.5, "old": 1}]
    assert asked("Customer", *every, "--as-of", "1") == [{"n": 2, "avg_age": 35.0, "old": 0}]
    middle = ("--agg", "quantile(age, 0.5)", "--agg", "count_distinct(profile.city)", "--agg", "top=max(id)")
    assert asked("Customer", *middle) == [{"quantile_age_0_5": 30, "count_distinct_profile_city": 1, "top": "b"}]
    groups = asked("Customer", "--group-by", "profile.city", "--agg", "n=count()", "--agg", "oldest=max(age)")
    assert groups == [{"profile.city": "Rome", "n": 1, "oldest": 30}, {"profile.city": None, "n": 1, "oldest": 41}]
    assert asked("Customer", "--group-by", "id", "--agg", "s=sum(age)", "--having", "s > 30 and id != 'z'") == [
        {"id": "b", "s": 41}
    ]
    assert asked("Knows", "--group-by", "right.age") == [{"right.age": 41, "count": 1}]
    assert asked("Customer", "--where", 'id == "a"', "--via", "Knows", "--columns", "id") == [{"id": "b"}]
    assert asked("Customer", "--via", "Knows where since > 2000") == []
    assert asked("Customer", "--via", "reverse Knows depth 1.. where since < 2000 to age > 1", "--count") == [
        {"count": 1}
    ]
    assert asked("Customer", "--via", "Knows depth 0..2 to id == 'to'", "--agg", "count()") == [{"count": 0}]
    assert asked("Customer", "--between", "2", "2", "--columns", "id")[0]["commit_id"] == 2
    (changed,) = asked("Customer", "--diff", "1", "2", "--where", "age > 40")
    assert (changed["entity_key"], changed["action"]) == ("b", "changed")
    assert (changed["before"]["age"], changed["after"]["age"]) == (40, 41)
    assert asked("Customer", "--via", "Knows", "--explain")["tables"][2]["type"] == "Knows"
    (reached,) = asked("Customer", "--where", 'id == "a"', "--via", "Knows", "--diff", "1", "2")
    assert reached["entity_key"] == "b"
    assert asked("Knows", "--where", "left.age == 30", "--diff", "0", "1")[0]["action"] == "added"
    assert asked("Customer", "--history", "--via", "Knows", "--count") == [{"count": 2}]


def test_keys_of_groups_with_dots_are_names(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str) -> Any:
        assert run(["onto", "query", *words, "--agg", "n=count()", "--store", uri, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    towns = ("Customer", "--group-by", "profile.city")
    for having in ('profile.city == "Rome" and n>0', "(n==1)and profile.city!=null", "`profile.city` == 'Rome'"):
        assert asked(*towns, "--having", having) == [{"profile.city": "Rome", "n": 1}]
    assert asked("Knows", "--group-by", "right.age", "--having", "right.age>41") == []
    assert asked("Knows", "--group-by", "right.age", "--having", "not right.age>41") == [{"right.age": 41, "n": 1}]


def test_the_shortest_way_in_words(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str) -> Any:
        assert run(["onto", "query", "Customer", *words, "--columns", "id,profile", "--store", uri, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    both = [{"id": "b", "profile": {}}, {"id": "a", "profile": {"city": "Rome"}}]
    assert asked("--where", 'id == "b"', "--path", "reverse Knows to age == 30") == both
    assert asked("--where", 'id == "b"', "--path", "reverse Knows depth 1 where since > 2000 to age == 30") == []
    assert asked("--where", 'id == "a"', "--path", "Knows to age == 40", "--as-of", "1") == both[::-1]
    assert asked("--where", 'id == "a"', "--path", "Knows to age == 40") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--agg", "mean(age)"), "is not a figure"),
        (("--agg", "sum(id)"), "numbers"),
        (("--agg", "sum(aeg)"), "did you mean age?"),
        (("--agg", "quantile(age, 2)"), "is not a share"),
        (("--agg", "count()", "--agg", "count()"), "two figures have one name"),
        (("--group-by", "id", "--having", "m > 5"), "has no field m"),
        (("--via", "Knos"), "did you mean Knows?"),
        (("--via", "Knows sideways"), "is not a hop"),
        (("--via", "Knows depth 3..1"), "is not a depth"),
        (("--via", "Customer"), "is not a relation"),
        (("--diff", "1", "2", "--as-of", "1"), "names its moments itself"),
        (("--as-of", "1", "--between", "1", "2"), "two kinds of questions"),
        (("--count", "--agg", "count()"), "two kinds of questions"),
        (("--between", "2", "1"), "commit 2 is after commit 1"),
        (("--agg", "count()", "--limit", "1"), "figures are over all rows"),
        (("--diff", "1", "2", "--limit", "1"), "a diff is whole"),
        (("--as-of", "\u00b2"), "neither a commit nor a time nor a tag"),
        (("--path", "Knows"), "does not say where it leads"),
        (("--path", "Knows to id == 'a'", "--count"), "two kinds of questions"),
    ],
)
def test_what_cannot_be_asked_is_said(
    uri: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert run(["onto", "query", "Customer", *words, "--store", uri]) != 0
    assert said in capsys.readouterr().err


def test_figures_and_differences_of_a_type_that_was_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"file:{tmp_path / 'store'}"

    async def work() -> None:
        async with holdfast.open(address) as hf, hf.ontology(Past) as onto:
            onto.ensure([Past(id="a"), Past(id="b")])
            await onto.commit()
            onto.ensure(Past(id="c"))
            await onto.commit()

    asyncio.run(work())
    assert run(["onto", "schema", "drop", "Past", "--store", address, "--json"]) == 0
    token = json.loads(capsys.readouterr().out)["token"]
    assert run(["onto", "schema", "drop", "Past", "--token", token, "--store", address]) == 0
    capsys.readouterr()

    def asked(*words: str) -> Any:
        assert run(["onto", "query", "Past", *words, "--store", address, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert asked("--as-of", "1", "--count") == [{"count": 2}]
    assert asked("--as-of", "1", "--agg", "n=count()") == [{"n": 2}]
    assert [each["entity_key"] for each in asked("--diff", "1", "2")] == ["c"]
    assert run(["onto", "query", "Past", "--agg", "n=count()", "--store", address]) == 4
    assert "dropped" in capsys.readouterr().err
