"""When keys had an object, as positions in the order of events: what listings and reads are measured against."""

from collections.abc import Sequence

from holdfast.sim.history import FOREVER, Landing

Span = tuple[int, int]


class Lifetimes:
    """Of every key under a prefix, from landing to delete. Overwriting does not end a life."""

    def __init__(self, landings: Sequence[Landing], prefix: str = "") -> None:
        self._spans: dict[str, list[Span]] = {}
        for landing in landings:
            if landing.key.startswith(prefix):
                self._add(landing)

    def _add(self, landing: Landing) -> None:
        spans = self._spans.setdefault(landing.key, [])
        if landing.body is None:
            spans[-1] = (spans[-1][0], landing.position)
        elif not spans or spans[-1][1] != FOREVER:
            spans.append((landing.position, FOREVER))

    def stood(self, key: str, since: int, until: int) -> bool:
        """At some moment between the two."""
        return any(start < until and end > since for start, end in self._spans.get(key, ()))

    def stood_throughout(self, key: str, since: int, until: int) -> bool:
        return any(start < since and end > until for start, end in self._spans.get(key, ()))

    def throughout(self, since: int, until: int) -> set[str]:
        """The keys that stood all the time between the two."""
        return {key for key in self._spans if self.stood_throughout(key, since, until)}
