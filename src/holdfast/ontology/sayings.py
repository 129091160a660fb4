"""Sayings: statements that were made, for who puts the same question again while nothing has changed. Pure.

To make a statement of a question takes as long as DuckDB takes for a small one. What a statement is made of is the
question, the head, the redactions that are known, and what the session has loaded; as long as the last three are the
same (``state``), equal words have equal statements. A statement that was made while one of them changed is not kept.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

MOST = 64
"""Statements that are kept."""
LONGEST = 8_192
"""Longer questions are said anew: they do not come often, and are compared letter by letter."""


@dataclass(frozen=True, slots=True)
class Said:
    value: Any
    """The statement, and how its result is read."""
    planned: Sequence[Any]
    """Its tables."""
    ask: Any
    """The question, whose types are told by where they are in memory, and must stay there."""


class Sayings:
    def __init__(self) -> None:
        self._state: Hashable = None
        self._kept: dict[str, Said] = {}

    def find(self, state: Hashable, words: str) -> Said | None:
        if state != self._state:
            self._kept.clear()
            self._state = state
        return self._kept.get(words)

    def keep(self, state: Hashable, words: str, said: Said) -> None:
        """``state`` is that of now; where it was another one when it was looked for, nothing is kept."""
        if state == self._state and len(words) <= LONGEST:
            if len(self._kept) >= MOST:
                self._kept.clear()
            self._kept[words] = said

    def forget(self) -> None:
        self._kept.clear()
