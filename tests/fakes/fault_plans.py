"""Faults as data, and the rules that say which request suffers which; ``fault_proxy`` carries them out.

All are faults of the network: a server that keeps the laws must keep them through the proxy. Servers that break laws
are in ``tests.fakes.stores`` and ``tests.integration.s3_model``.

Every rule counts the requests that it matches, also those that an earlier rule took, and draws for each from a
generator of its own (seed, place in the plan): what happens to the nth request that a rule matches depends on the seed
alone. The first rule that fires decides.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

FIRST: Final = "first"
SECOND: Final = "second"
CUT: Final = "cut"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    verb: str
    key: str
    condition: str | None
    """``if-match``, ``if-none-match``, or none."""


@dataclass(frozen=True, slots=True)
class CutResponse:
    """The request lands, the connection is cut; ``after_bytes`` of the response get through first."""

    after_bytes: int = 0
    kind: ClassVar[str] = "cut-response"


@dataclass(frozen=True, slots=True)
class DelayResponse:
    """The request lands at once, its response comes ``ms`` later."""

    ms: float
    kind: ClassVar[str] = "delay-response"


@dataclass(frozen=True, slots=True)
class Twice:
    """The request is delivered twice; the client gets the first answer, the second, or a cut.

    With ``pause_ms`` the second delivery comes that much later, and only a client that gets the second answer waits
    for it: a write that another believes done, or lost, lands once more after that.
    """

    answer: Literal["first", "second", "cut"] = SECOND
    pause_ms: float = 0
    kind: ClassVar[str] = "twice"


@dataclass(frozen=True, slots=True)
class Answer:
    """An error from the proxy; the server never sees the request. A 503 says ``SlowDown``."""

    status: int = 503
    kind: ClassVar[str] = "answer"


@dataclass(frozen=True, slots=True)
class AnswerAfter:
    """The request lands, and the proxy answers an error in place of the server's answer.

    A 503 says ``ServiceUnavailable`` here: ``SlowDown`` would be a promise that nothing was done.
    """

    status: int = 503
    kind: ClassVar[str] = "answer-after"


@dataclass(frozen=True, slots=True)
class Stall:
    """No answer until the client gives up; ``landed`` says whether the server got the request."""

    landed: bool = False
    kind: ClassVar[str] = "stall"


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """The connection is cut after the client has sent everything, and the server gets nothing."""

    kind: ClassVar[str] = "lose-request"


@dataclass(frozen=True, slots=True)
class ApplyLater:
    """The connection is cut now (or ``status`` answered), and the request lands ``ms`` later."""

    ms: float
    status: int | None = None
    kind: ClassVar[str] = "apply-later"


@dataclass(frozen=True, slots=True)
class RefuseConnection:
    """A new connection is reset at once. Its rule counts connections and cannot look at requests."""

    kind: ClassVar[str] = "refuse-connection"


Fault = CutResponse | DelayResponse | Twice | Answer | AnswerAfter | Stall | LoseRequest | ApplyLater | RefuseConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is matched (all that is given must hold), how often it fires, and the fault.

    ``nth`` (from 1) picks one match, ``times`` bounds how often the fault happens, ``probability`` is per match.
    """

    fault: Fault
    verb: str | None = None
    prefix: str = ""
    condition: Literal["if-match", "if-none-match", "any"] | None = None
    nth: int | None = None
    times: int | None = None
    probability: float = 1.0

    def matches(self, request: Request) -> bool:
        return (
            self.verb in (None, request.verb)
            and request.key.startswith(self.prefix)
            and (self.condition is None or request.condition is not None)
            and self.condition in (None, "any", request.condition)
        )


@dataclass(frozen=True, slots=True)
class Plan:
    rules: tuple[Rule, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, *rules: Rule, seed: int = 0) -> "Plan":
        return cls(rules, seed)


class Chooser:
    """A plan at work: its counters and generators."""

    def __init__(self, plan: Plan) -> None:
        self._tallies = [_Tally(rule, random.Random(f"{plan.seed}/{place}")) for place, rule in enumerate(plan.rules)]

    def refuses_connection(self) -> bool:
        return self._first([tally for tally in self._tallies if tally.on_connections]) is not None

    def choose(self, request: Request) -> Fault | None:
        return self._first([t for t in self._tallies if not t.on_connections and t.rule.matches(request)])

    def _first(self, matching: "Sequence[_Tally]") -> Fault | None:
        chosen: Fault | None = None
        for tally in matching:
            if tally.fires(free=chosen is None):
                chosen = tally.rule.fault
        return chosen


class _Tally:
    def __init__(self, rule: Rule, rng: random.Random) -> None:
        self.rule = rule
        self.on_connections = isinstance(rule.fault, RefuseConnection)
        self._rng = rng
        self._matched = 0
        self._fired = 0

    def fires(self, *, free: bool) -> bool:
        """Count one match, and whether the rule fires on it. It cannot when an earlier rule has (not ``free``)."""
        self._matched += 1
        lucky = self._rng.random() < self.rule.probability
        wanted = self.rule.nth in (None, self._matched) and (self.rule.times is None or self._fired < self.rule.times)
        fires = free and lucky and wanted
        self._fired += fires
        return fires


def lossy(seed: int, share: float = 0.25) -> Plan:
    """A network that loses: of all writes and deletes ``share`` have a cut response or are delivered twice."""
    faults: tuple[Fault, ...] = (CutResponse(), Twice(), Twice(answer=CUT))
    # Later rules see what the earlier ones let through; together they reach ``share``.
    each = share / len(faults)
    rules = [
        Rule(fault=fault, verb=verb, probability=each / (1 - each * place))
        for verb in ("put", "delete")
        for place, fault in enumerate(faults)
    ]
    return Plan(tuple(rules), seed)


def rough(seed: int) -> Plan:
    """``lossy``, and in addition lost requests, 503 on everything and 409 on conditional writes."""
    return Plan(
        (
            Rule(fault=Answer(409), verb="put", condition="any", probability=0.05),
            Rule(fault=Answer(503), probability=0.05),
            Rule(fault=LoseRequest(), probability=0.05),
            *lossy(seed).rules,
        ),
        seed,
    )
