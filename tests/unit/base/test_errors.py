"""One table from error kind to exit code and HTTP status, complete and without collisions."""

import pickle
import traceback

import pytest

from holdfast.base.errors import TABLE, Contended, Corrupt, HoldfastError, Unavailable, check


def tree(kind: type[HoldfastError] = HoldfastError) -> list[type[HoldfastError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]


KINDS = [error for error in tree() if error.__module__ == "holdfast.base.errors"]
by_name = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@by_name
def test_every_error_has_a_row(kind: type[HoldfastError]) -> None:
    error = kind("what happened")
    assert error.exit_code == TABLE[kind.kind].exit_code
    assert error.http_status == TABLE[kind.kind].http_status


def test_every_row_has_an_error() -> None:
    assert set(TABLE) == {kind.kind for kind in KINDS}


def test_exit_codes_are_unique_and_leave_room_for_the_shell() -> None:
    codes = [row.exit_code for row in TABLE.values()]
    assert len(set(codes)) == len(codes)
    assert all(1 <= code < 64 for code in codes)


def test_statuses_are_errors() -> None:
    assert all(400 <= row.http_status < 600 for row in TABLE.values())


def test_every_row_says_what_it_means() -> None:
    assert all(row.meaning for row in TABLE.values())


@by_name
def test_the_docstring_draws_the_whole_tree(kind: type[HoldfastError]) -> None:
    import holdfast.base.errors

    assert kind.__name__ in str(holdfast.base.errors.__doc__)


@by_name
def test_a_remedy_given_wins_over_the_usual_one(kind: type[HoldfastError]) -> None:
    assert kind("x").remedy == kind.default_remedy
    assert kind("x", remedy="do this").remedy == "do this"
    assert str(kind("what happened", remedy="do this")) == "what happened"
    assert traceback.format_exception_only(kind("x", remedy="do this"))[1:] == ["hint: do this\n"]


def test_a_conflict_on_the_wire_is_the_same_call_later() -> None:
    assert issubclass(Contended, Unavailable)
    assert Contended("x").kind == "unavailable"


@pytest.mark.parametrize("maybe", [True, False])
def test_unavailable_tells_whether_a_write_may_have_landed(maybe: bool) -> None:
    assert Unavailable("x", maybe_applied=maybe).maybe_applied is maybe
    assert Unavailable("x").maybe_applied is False


@by_name
def test_errors_cross_process_boundaries(kind: type[HoldfastError]) -> None:
    error = kind("what happened", remedy="do this")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.remedy) == (kind, "what happened", "do this")


def test_check_raises_corrupt_and_nothing_else() -> None:
    check(True, "never said")
    with pytest.raises(Corrupt, match="head ran backwards"):
        check(False, "head ran backwards")
