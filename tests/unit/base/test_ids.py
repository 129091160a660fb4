"""Ids come from the injected generator: equal seeds give equal ids."""

import random
import re

import pytest

from holdfast.base.ids import Ids


@pytest.mark.parametrize(("kind", "length"), [("write_id", 24), ("attempt", 8), ("unique", 32)])
def test_ids_are_lower_case_hex_of_a_fixed_length_and_follow_from_the_seed(kind: str, length: int) -> None:
    class Zeros(random.Random):
        def getrandbits(self, k: int, /) -> int:
            return 0

    def drawn(seed: int) -> list[str]:
        ids = Ids(random.Random(seed))
        return [getattr(ids, kind)() for _ in range(200)]

    assert all(re.fullmatch(rf"[0-9a-f]{{{length}}}", each) for each in drawn(5))
    assert drawn(5) == drawn(5) != drawn(6)
    assert getattr(Ids(Zeros()), kind)() == "0" * length
