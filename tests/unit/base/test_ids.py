"""Ids come from the injected generator: a seed gives the same world again."""

import random
import re

import pytest

from holdfast.base.ids import Ids


def drawn(seed: int) -> list[str]:
    ids = Ids(random.Random(seed))
    return [draw() for _ in range(20) for draw in (ids.write_id, ids.attempt, ids.unique)]


def test_a_seed_gives_the_same_ids() -> None:
    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


@pytest.mark.parametrize(("kind", "length"), [("write_id", 24), ("attempt", 8), ("unique", 32)])
def test_ids_are_lower_case_hex_of_a_fixed_length(kind: str, length: int) -> None:
    ids = Ids(random.Random(1))
    assert all(re.fullmatch(rf"[0-9a-f]{{{length}}}", getattr(ids, kind)()) for _ in range(200))


def test_small_numbers_keep_their_zeros() -> None:
    class Zeros(random.Random):
        def getrandbits(self, k: int, /) -> int:
            return 0

    ids = Ids(Zeros())
    assert (ids.write_id(), ids.attempt(), ids.unique()) == ("0" * 24, "0" * 8, "0" * 32)
