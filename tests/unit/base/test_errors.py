"""One table from error kind to exit code and HTTP status, complete and without collisions."""

import pickle
import traceback

import pytest

from holdfast.base import errors
from holdfast.base.errors import TABLE, Contended, Corrupt, HoldfastError, Unavailable, check


def tree(kind: type[HoldfastError] = HoldfastError) -> list[type[HoldfastError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]


KINDS = [error for error in tree() if error.__module__ == "holdfast.base.errors"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_row_a_place_in_the_tree_and_a_remedy_and_crosses_processes(
    kind: type[HoldfastError],
) -> None:
    error = kind("what happened", remedy="do this")
    assert (error.exit_code, error.http_status) == (TABLE[kind.kind].exit_code, TABLE[kind.kind].http_status)
    assert kind.__name__ in str(errors.__doc__)
    assert kind("x").remedy == kind.default_remedy
    assert (str(error), error.remedy) == ("what happened", "do this")
    assert traceback.format_exception_only(error)[1:] == ["hint: do this\n"]
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.remedy) == (kind, "what happened", "do this")


def test_the_table_has_no_other_rows_and_its_codes_are_unique() -> None:
    assert set(TABLE) == {kind.kind for kind in KINDS}
    codes = [row.exit_code for row in TABLE.values()]
    assert len(set(codes)) == len(codes)
    assert all(1 <= row.exit_code < 64 and 400 <= row.http_status < 600 and row.meaning for row in TABLE.values())
    assert issubclass(Contended, Unavailable)
    assert Contended("x").kind == "unavailable"


def test_check_raises_corrupt_and_nothing_else() -> None:
    check(True, "never said")
    with pytest.raises(Corrupt, match="head ran backwards"):
        check(False, "head ran backwards")
