"""What a client asked of its store: requests, bytes, errors and estimated cost, per verb and key family.

A family is the part of a key that does not grow with the data: its first component.

An error is a request that the store did not serve, or that was cancelled. "No such object" and "the condition does not
hold" are answers, not errors.
"""

from dataclasses import dataclass, field

from holdfast.base.errors import NotFound

DOLLARS_PER_REQUEST = {
    "put": 0.005 / 1000,
    "list": 0.005 / 1000,
    "get": 0.0004 / 1000,
    "head": 0.0004 / 1000,
    "range": 0.0004 / 1000,
    "delete": 0.0,
}
"""S3 standard storage; an estimate for planning, not a bill."""

START_CHECK_PREFIX = "holdfast-start-check-"
"""Prefix of the object that a service writes to check a store when it starts; a random id follows."""


@dataclass
class Tally:
    """Counts of one verb on one key family. A context manager around one request."""

    requests: int = 0
    errors: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def __enter__(self) -> "Tally":
        self.requests += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and not issubclass(kind, NotFound):
            self.errors += 1


@dataclass
class Usage:
    """Running totals of one client, or of several that share it."""

    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)

    def of(self, verb: str, key: str) -> Tally:
        """The counts of a verb on the key's family."""
        return self.at(verb, "start-check" if key.startswith(START_CHECK_PREFIX) else key.partition("/")[0])

    def at(self, verb: str, family: str) -> Tally:
        tally = self.tallies.get((verb, family))
        if tally is None:
            tally = self.tallies[verb, family] = Tally()
        return tally

    def requests(self, verb: str | None = None, family: str | None = None) -> int:
        return sum(
            tally.requests
            for (its_verb, its_family), tally in self.tallies.items()
            if verb in (None, its_verb) and family in (None, its_family)
        )

    @property
    def by_verb(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for (verb, _), tally in self.tallies.items():
            totals[verb] = totals.get(verb, 0) + tally.requests
        return totals

    @property
    def dollars(self) -> float:
        return sum(DOLLARS_PER_REQUEST[verb] * tally.requests for (verb, _), tally in self.tallies.items())

    def rows(self) -> list[dict[str, str | int | float]]:
        """One row per verb and family, for tables and JSON."""
        return [
            {
                "verb": verb,
                "family": family,
                "requests": tally.requests,
                "errors": tally.errors,
                "sent_bytes": tally.sent_bytes,
                "received_bytes": tally.received_bytes,
                "dollars": DOLLARS_PER_REQUEST[verb] * tally.requests,
            }
            for (verb, family), tally in sorted(self.tallies.items())
        ]
