"""When a worker claims events that are others' to look at first. Pure.

Only right after the digest was read, so that it is known what the others had when they last wrote; and less and less
often while most of it comes too late.
"""

PATIENCE = 4
"""Help that came too late so often in a row rests for two to the power of it in polls."""


class Helping:
    def __init__(self) -> None:
        self.allowed = False
        self._names: set[str] = set()
        self._refused = 0
        self._rest = 0

    def polled(self) -> None:
        """The digest was read."""
        self._rest = max(0, self._rest - 1)
        self.allowed = self._rest == 0

    def over(self) -> None:
        """What was read is old by now."""
        self.allowed = False

    def choose(self, names: list[str]) -> list[str]:
        """These will be claimed."""
        self._names = set(names)
        return names

    def judge(self, names: list[str], taken: list[bool]) -> None:
        """What came of it."""
        tried = [ours for name, ours in zip(names, taken, strict=True) if name in self._names]
        if tried:
            self._refused = 0 if 2 * sum(tried) >= len(tried) else min(self._refused + 1, PATIENCE)
            self._rest = 2**self._refused if self._refused else 0
            self._names = set()
