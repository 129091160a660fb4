"""What was committed, as plain Python: every version of every fact, and the state after each commit.

Nothing of the library is used here: what it answers is compared with this.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Kind = Literal["Person", "Item", "Knows", "Buys"]
KINDS: tuple[Kind, ...] = ("Person", "Item", "Knows", "Buys")
ENDS: dict[Kind, tuple[Kind, Kind]] = {"Knows": ("Person", "Person"), "Buys": ("Person", "Item")}
Key = tuple[str, ...]
Fact = Mapping[str, Any]


class Write(NamedTuple):
    kind: Kind
    key: Key
    fact: Fact | None
    """None retracts."""


class Version(NamedTuple):
    """A fact as one commit wrote it; of a retraction, the fact that it took away."""

    commit_id: int
    kind: Kind
    key: Key
    fact: Fact
    retracted: bool = False


State = Mapping[Kind, Mapping[Key, Version]]


class Sight(NamedTuple):
    """What a condition can look at: a fact, and the entities at its ends. All fields of one that is None are null."""

    own: Fact
    left: Fact | None = None
    right: Fact | None = None


Holds = Callable[[Sight], bool]


class When(NamedTuple):
    """The state after the last commit, or all that the commits from first to last wrote."""

    first: int
    last: int
    history: bool


class Past:
    def __init__(self) -> None:
        self.states: list[State] = [{kind: {} for kind in KINDS}]
        self.history: list[Version] = []

    @property
    def head(self) -> int:
        return len(self.states) - 1

    def commit(self, writes: Sequence[Write]) -> int | None:
        """The last write of each identity counts; what changes nothing is no commit."""
        now = self.states[-1]
        number = len(self.states)
        last = {(write.kind, write.key): write for write in writes}
        made: list[Version] = []
        for kind, key, fact in last.values():
            old = now[kind].get(key)
            if fact is None and old is not None:
                made.append(Version(number, kind, key, old.fact, retracted=True))
            elif fact is not None and (old is None or _told(old.fact) != _told(fact)):
                made.append(Version(number, kind, key, fact))
        if not made:
            return None
        following = {kind: dict(now[kind]) for kind in KINDS}
        for version in made:
            following[version.kind].pop(version.key, None)
            if not version.retracted:
                following[version.kind][version.key] = version
        self.states.append(following)
        self.history += sorted(made, key=lambda version: version.key)
        return number

    def sight(self, version: Version, as_of: int) -> Sight:
        if version.kind not in ENDS:
            return Sight(version.fact)
        found = [self.fact(as_of, kind, key) for kind, key in zip(ENDS[version.kind], version.key[:2], strict=True)]
        return Sight(version.fact, *found)

    def fact(self, as_of: int, kind: Kind, key: str) -> Fact | None:
        version = self.states[as_of][kind].get((key,))
        return None if version is None else version.fact

    def people(self, as_of: int, holds: Holds) -> set[str]:
        """The keys of those for whom it holds."""
        found = self.states[as_of]["Person"].values()
        return {version.key[0] for version in found if holds(Sight(version.fact))}

    def rows(self, kind: Kind, holds: Holds, when: When) -> list[Version]:
        """A state by key; history by commit and key. Ends are seen as of the last commit, in history too."""
        if when.history:
            found = [each for each in self.history if each.kind == kind and when.first <= each.commit_id <= when.last]
        else:
            found = [version for _, version in sorted(self.states[when.last][kind].items())]
        return [version for version in found if holds(self.sight(version, when.last))]


def _told(fact: Fact) -> str:
    """Distinguishes 0.0 from -0.0 and 1.1 from 1.10, which are equal."""
    return repr(sorted(fact.items()))
