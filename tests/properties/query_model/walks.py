"""Along relations, as plain Python over sets of keys: where people lead to, and how far.

Nothing of the library is used here.
"""

from typing import NamedTuple

from tests.properties.query_model.past import Holds, Key, Past, Sight


class Road(NamedTuple):
    """``Knows`` at one commit: the pairs of keys that it leads along, and who is there."""

    pairs: frozenset[tuple[str, str]]
    there: frozenset[str]

    @classmethod
    def of(cls, past: Past, as_of: int, holds: Holds | None, *, reverse: bool) -> "Road":
        state = past.states[as_of]
        found = [key for key, version in state["Knows"].items() if holds is None or holds(Sight(version.fact))]
        return cls(
            frozenset(_pair(key, reverse=reverse) for key in found), frozenset(key for (key,) in state["Person"])
        )

    def led_to(self, starts: set[str]) -> set[str]:
        """Keys at the other end, of people who are there and of those who are not."""
        return {far for near, far in self.pairs if near in starts}

    def step(self, starts: set[str]) -> set[str]:
        return self.led_to(starts) & self.there

    def walked(self, starts: set[str], least: int, most: int | None) -> set[str]:
        """Who is reached after ``least`` to ``most`` steps. More steps than there are people reach no one new."""
        met = set(starts) if least == 0 else set()
        level = starts
        for count in range(1, (len(self.there) if most is None else most) + 1):
            level = self.step(level)
            met |= level if count >= least else set()
        return met


def bought(past: Past, as_of: int, buyers: set[str]) -> list[str]:
    """The keys of the items that they buy and that are there."""
    state = past.states[as_of]
    return sorted({item for buyer, item, _ in state["Buys"] if buyer in buyers and (item,) in state["Item"]})


def _pair(key: Key, *, reverse: bool) -> tuple[str, str]:
    return (key[1], key[0]) if reverse else (key[0], key[1])
