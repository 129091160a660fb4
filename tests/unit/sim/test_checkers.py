"""The other checkers, each with a good history and with every kind of bad one."""

from typing import Any

import pytest

from holdfast.base.errors import Ambiguous, Conflict
from holdfast.sim.checkers.lease import (
    ACQUIRED,
    FENCED,
    HANDED_OVER,
    HELD,
    RENEWED,
    Stay,
    fenced_off,
    lease_was_held,
    one_owner,
    stays,
)
from holdfast.sim.checkers.linearizable import LOST, WRITTEN
from holdfast.sim.checkers.objects import (
    applied_once,
    complete_listings,
    gapless,
    monotone,
    outcomes_are_true,
    true_reads,
)
from holdfast.sim.history import FOREVER, Done, Failed, Landing, Open, Operation, Outcome

DONE, NO, OPEN = Done(), Failed(Conflict("no")), Open(Ambiguous("who knows"))


def rules(violations: Any) -> list[str]:
    return [violation.rule for violation in violations]


def op(call: str, argument: Any, outcome: Outcome, called: int, returned: int, key: str = "k") -> Operation:
    return Operation("p", call, key, argument, called, FOREVER if isinstance(outcome, Open) else returned, outcome)


@pytest.mark.parametrize(
    ("applied", "outcomes", "broken"),
    [
        ("a", [DONE], []),
        ("", [NO], []),
        ("", [OPEN], []),
        ("a", [OPEN], []),
        ("a", [OPEN, DONE], []),
        ("a", [OPEN, NO], []),
        ("", [DONE], ["no acknowledged loss"]),
        ("", [OPEN, DONE], ["no acknowledged loss"]),
        ("aa", [DONE], ["applied at most once"]),
        ("aa", [OPEN], ["applied at most once"]),
        ("a", [NO], ["no false conflict"]),
        ("ab", [DONE], ["applied at most once"]),
    ],
)
def test_applied_once(applied: str, outcomes: list[Outcome], broken: list[str]) -> None:
    assert rules(applied_once(applied, {"a": outcomes})) == broken


@pytest.mark.parametrize(
    ("outcome", "landed", "overwritten", "broken"),
    [
        (Done(WRITTEN), [5], 20, []),
        (Done(WRITTEN), [], 20, ["no acknowledged loss"]),
        (Done(WRITTEN), [15], 20, ["no acknowledged loss"]),
        (Done(WRITTEN), [5, 15], 20, ["applied at most once"]),
        (Done(LOST), [], 20, []),
        (Done(LOST), [5], 8, []),
        (Done(LOST), [5], 20, ["no false conflict"]),
        (Done(LOST), [15], 20, ["no false conflict"]),
        (NO, [], 20, []),
        (NO, [15], 20, ["no false conflict"]),
        (OPEN, [15], 20, []),
        (OPEN, [], 20, []),
        (OPEN, [5, 15], 20, ["applied at most once"]),
    ],
)
def test_outcomes_are_true(outcome: Outcome, landed: list[int], overwritten: int, broken: list[str]) -> None:
    landings = [Landing(at, "p", "k", b"new", "new") for at in landed]
    landings = sorted([*landings, Landing(overwritten, "q", "k", b"next", "next")], key=lambda one: one.position)
    assert rules(outcomes_are_true([op("cas", ("old", "new"), outcome, 1, 10)], landings)) == broken


def test_numbers_that_must_grow() -> None:
    assert rules(monotone("n", [1, 1, 3])) == []
    assert rules(monotone("n", [1, 1, 3], strictly=True)) == ["monotone"]
    assert rules(monotone("n", [2, 1])) == ["monotone"]
    assert rules(gapless("n", [1, 2, 3])) == []
    assert rules(gapless("n", [1, 3])) == ["monotone"]


@pytest.mark.parametrize(
    ("tenures", "grants", "broken"),
    [
        ([("a", 1), ("a", 1), ("b", 2)], [("a", 1), ("b", 2)], []),
        ([("a", 1), ("b", 1)], [], ["one owner"]),
        ([("a", 2), ("b", 1)], [], ["monotone"]),
        ([("a", 1)], [("b", 1)], ["one owner"]),
        ([("a", 1)], [("a", 2)], ["one owner"]),
        ([("a", 1)], [("a", 1), ("a", 1)], ["one owner"]),
    ],
)
def test_one_owner(tenures: list[tuple[str, int]], grants: list[tuple[str, int]], broken: list[str]) -> None:
    assert rules(one_owner(tenures, grants)) == broken


@pytest.mark.parametrize(
    ("effects", "harmless"),
    [
        ([("a", 1), ("a", 1), ("b", 2)], True),
        ([("a", 1), ("b", 2), ("a", 1)], False),
        ([("a", 1), ("b", 1)], False),
        ([], True),
    ],
)
def test_fenced_off(effects: list[tuple[str, int]], harmless: bool) -> None:
    assert (rules(fenced_off(effects)) == []) == harmless


STOOD = stays([(10, "a", 1), (20, "a", 1), (30, "b", 2)])


def test_stays_end_where_the_next_begins() -> None:
    assert [Stay("a", 1, 10, 20), Stay("a", 1, 20, 30), Stay("b", 2, 30, FOREVER)] == STOOD


@pytest.mark.parametrize(
    ("call", "argument", "answer", "called", "returned", "true"),
    [
        ("acquire", "a", (ACQUIRED, 1), 5, 15, True),
        ("acquire", "a", (ACQUIRED, 1), 21, 25, False),
        ("acquire", "a", (ACQUIRED, 2), 5, 35, False),
        ("acquire", "b", (HELD, "a", 1), 25, 28, True),
        ("acquire", "b", (HELD, "a", 1), 31, 40, False),
        ("renew", ("a", 1), RENEWED, 15, 25, True),
        ("renew", ("a", 1), RENEWED, 21, 25, False),
        ("renew", ("a", 1), FENCED, 25, 35, True),
        ("renew", ("a", 1), FENCED, 12, 25, False),
        ("hand over", ("a", 1, "b"), HANDED_OVER, 25, 35, True),
        ("hand over", ("a", 1, "c"), HANDED_OVER, 25, 35, False),
        ("hand over", ("a", 1, "c"), FENCED, 25, 35, True),
        ("hand over", ("a", 1, "b"), FENCED, 25, 35, False),
        ("release", ("a", 1), None, 25, 26, True),
    ],
)
def test_lease_was_held(call: str, argument: Any, answer: object, called: int, returned: int, true: bool) -> None:
    found = rules(lease_was_held([op(call, argument, Done(answer), called, returned)], STOOD))
    assert found == ([] if true else ["answers to tenants are true"])


class TestListings:
    landings = (
        Landing(10, "p", "f/a", b"x", "v"),
        Landing(20, "p", "f/b", b"x", "v"),
        Landing(30, "p", "f/a"),
        Landing(40, "p", "g/c", b"x", "v"),
    )

    def judge(self, keys: tuple[str, ...], called: int, returned: int) -> list[str]:
        return rules(complete_listings([op("list", None, Done(keys), called, returned)], self.landings, "f/"))

    def test_what_stood_throughout_must_be_there(self) -> None:
        assert self.judge(("f/a", "f/b"), 21, 25) == []
        assert self.judge(("f/a",), 21, 25) == ["listings are complete"]

    def test_what_came_or_went_meanwhile_may_be_there(self) -> None:
        for keys in [("f/a", "f/b"), ("f/a",), ("f/b",), ()]:
            assert self.judge(keys, 15, 35) == []

    def test_what_was_gone_or_had_not_come_may_not(self) -> None:
        assert self.judge(("f/a", "f/b"), 31, 35) == ["listings are true"]
        assert self.judge(("f/a", "f/b"), 11, 15) == ["listings are true"]

    def test_order_and_once(self) -> None:
        assert self.judge(("f/b", "f/a"), 21, 25) == ["listings are true"]
        assert self.judge(("f/a", "f/a", "f/b"), 21, 25) == ["listings are true"]

    def test_a_put_that_ended_left_an_object(self) -> None:
        puts = [op("put", None, DONE, 5, 15, key="f/a"), op("put", None, DONE, 31, 35, key="f/a")]
        assert rules(complete_listings(puts, self.landings, "f/")) == ["listings are complete"]


class TestReads:
    """The object stands from 10 to 30, and again from 50."""

    landings = (Landing(10, "p", "k", b"true", "v"), Landing(30, "p", "k"), Landing(50, "p", "k", b"true", "v"))

    def judge(self, found: bytes | None, called: int, returned: int, *deletes: tuple[int, int]) -> list[str]:
        operations = [op("delete", None, DONE, start, end) for start, end in deletes]
        operations.append(op("read", None, Done(found), called, returned))
        return rules(true_reads(operations, self.landings, lambda _: b"true"))

    def test_bytes_are_the_object_s_own(self) -> None:
        assert self.judge(b"true", 15, 16) == []
        assert self.judge(b"false", 15, 16) == ["reads return the object's bytes"]

    def test_what_stands_is_found(self) -> None:
        assert self.judge(None, 35, 36) == []
        assert self.judge(None, 25, 36) == []
        assert self.judge(None, 15, 16) == ["what stands is found"]

    def test_what_others_deleted_may_be_found_and_what_oneself_deleted_may_not(self) -> None:
        assert self.judge(b"true", 35, 36) == []
        assert self.judge(b"true", 35, 36, (25, 32)) == []
        assert self.judge(b"true", 35, 36, (31, 33)) == ["one's own deletes are seen"]
        assert self.judge(b"true", 55, 56, (31, 33)) == []

    def test_what_never_stood_is_not_found(self) -> None:
        assert self.judge(b"true", 1, 5) == ["one's own deletes are seen"]
