"""Faults as data, and the rules that say which request suffers which; ``fault_proxy`` carries them out.

All are faults of the network: a server that keeps the laws must keep them through the proxy. Servers that break laws
are in ``tests.fakes.stores`` and ``tests.integration.s3_model``.

Every rule draws for each request that it matches, also those that an earlier rule took, from a generator of its own
(seed, place in the plan): what happens to the nth request that a rule matches depends on the seed alone. The first rule
that fires decides.
"""

import random
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    verb: str
    key: str
    conditional: bool


@dataclass(frozen=True, slots=True)
class CutResponse:
    """The request lands, and the connection is cut."""

    kind: ClassVar[str] = "cut-response"


@dataclass(frozen=True, slots=True)
class DelayResponse:
    """The request lands at once, its response comes ``ms`` later."""

    ms: float
    kind: ClassVar[str] = "delay-response"


@dataclass(frozen=True, slots=True)
class Twice:
    """The request is delivered twice; the client gets the second answer, or with ``cut`` none."""

    cut: bool = False
    kind: ClassVar[str] = "twice"


@dataclass(frozen=True, slots=True)
class Answer:
    """An error from the proxy; the server never sees the request. A 503 says ``SlowDown``."""

    status: int = 503
    kind: ClassVar[str] = "answer"


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """The connection is cut after the client has sent everything, and the server gets nothing."""

    kind: ClassVar[str] = "lose-request"


Fault = CutResponse | DelayResponse | Twice | Answer | LoseRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is matched (all that is given must hold), how often it fires, and the fault."""

    fault: Fault
    verb: str | None = None
    conditional: bool = False
    probability: float = 1.0

    def matches(self, request: Request) -> bool:
        return self.verb in (None, request.verb) and (request.conditional or not self.conditional)


@dataclass(frozen=True, slots=True)
class Plan:
    rules: tuple[Rule, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, *rules: Rule) -> "Plan":
        return cls(rules)


class Chooser:
    """A plan at work: its generators."""

    def __init__(self, plan: Plan) -> None:
        self._rules = [(rule, random.Random(f"{plan.seed}/{place}")) for place, rule in enumerate(plan.rules)]

    def choose(self, request: Request) -> Fault | None:
        chosen: Fault | None = None
        for rule, rng in self._rules:
            if rule.matches(request):
                fires = rng.random() < rule.probability
                chosen = rule.fault if fires and chosen is None else chosen
        return chosen


def lossy(seed: int, share: float = 0.25) -> Plan:
    """A network that loses: of all writes and deletes ``share`` have a cut response or are delivered twice."""
    faults: tuple[Fault, ...] = (CutResponse(), Twice(), Twice(cut=True))
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
            Rule(fault=Answer(409), verb="put", conditional=True, probability=0.05),
            Rule(fault=Answer(503), probability=0.05),
            Rule(fault=LoseRequest(), probability=0.05),
            *lossy(seed).rules,
        ),
        seed,
    )
