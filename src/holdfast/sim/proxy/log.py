"""What went through a proxy: one record per request, and counts at both of its ends.

``asked`` counts what clients sent, ``served`` what the server got and how it answered, ``answered`` what clients were
told. The three differ exactly by the faults. A status of ``NONE`` stands for no answer.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from holdfast.sim.proxy.request import Request

NONE = 0
"""In place of a status: nothing came back."""


@dataclass(slots=True)
class Record:
    """One request of a client."""

    number: int
    connection: int
    request: Request
    fault: str | None
    status: int | None = None
    """What the client was answered; ``NONE`` if the connection was cut, None while it waits."""
    landed: list[int] = field(default_factory=list)
    """The server's answers, one per delivery."""

    @property
    def line(self) -> str:
        """For people: number, verb, key, fault, what landed, what was answered."""
        request = self.request
        what = f"{request.verb} {request.key or request.bucket}"
        if request.condition is not None:
            what += f" [{request.condition}]"
        at_server = ",".join(_shown(status) for status in self.landed) or "-"
        told = "waiting" if self.status is None else _shown(self.status)
        return f"{self.number:6d}  {what}  {self.fault or 'forward'}  server {at_server}  client {told}"


def _shown(status: int) -> str:
    return "cut" if status == NONE else str(status)


Tally = Counter[tuple[str, int]]


class Counts:
    """Totals since the proxy started, or since ``clear``."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.at_server: Tally = Counter()
        self.to_client: Tally = Counter()
        self.faults: Counter[str] = Counter()
        self.connections = 0

    def asked(self, verb: str | None = None) -> int:
        """Requests that clients sent."""
        return sum(number for its_verb, number in self.requests.items() if verb in (None, its_verb))

    def served(self, verb: str | None = None, status: int | None = None) -> int:
        """Requests that reached the server."""
        return _total(self.at_server, verb, status)

    def answered(self, verb: str | None = None, status: int | None = None) -> int:
        """Answers that clients got; with status ``NONE``, the cut ones alone."""
        return _total(self.to_client, verb, status)

    def clear(self) -> None:
        for counter in (self.requests, self.at_server, self.to_client, self.faults):
            counter.clear()
        self.connections = 0

    def as_dict(self) -> dict[str, dict[str, int] | int]:
        return {
            "connections": self.connections,
            "asked": dict(sorted(self.requests.items())),
            "served": {f"{verb} {status}": number for (verb, status), number in sorted(self.at_server.items())},
            "answered": {f"{verb} {status}": number for (verb, status), number in sorted(self.to_client.items())},
            "faults": dict(sorted(self.faults.items())),
        }


def _total(tally: Tally, verb: str | None, status: int | None) -> int:
    return sum(
        number
        for (its_verb, its_status), number in tally.items()
        if verb in (None, its_verb) and status in (None, its_status)
    )


class Log:
    """The newest records, and the counts of all."""

    def __init__(self, keep: int) -> None:
        self.records: deque[Record] = deque(maxlen=keep)
        self.counts = Counts()
        self._numbered = 0

    def asked(self, connection: int, request: Request, fault: str | None) -> Record:
        self._numbered += 1
        record = Record(self._numbered, connection, request, fault)
        self.records.append(record)
        self.counts.requests[request.verb] += 1
        if fault is not None:
            self.counts.faults[fault] += 1
        return record

    def served(self, record: Record, verb: str, status: int) -> None:
        record.landed.append(status)
        self.counts.at_server[verb, status] += 1

    def answered(self, record: Record, status: int) -> None:
        if record.status is None:
            record.status = status
            self.counts.to_client[record.request.verb, status] += 1
