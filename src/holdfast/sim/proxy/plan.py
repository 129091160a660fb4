"""Which request suffers which fault: rules, drawn from a seed.

A rule names what it matches and the fault. Every rule counts the requests that it matches, also those that an earlier
rule took, and draws for each from a generator of its own (seed, place in the plan): what happens to the nth request
that a rule matches depends on the seed alone. The first rule that fires decides.

As JSON:

    {"seed": 7, "rules": [{"fault": {"kind": "cut-response"}, "verb": "put", "probability": 0.25}]}
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from holdfast.base.errors import Invalid
from holdfast.sim.proxy.faults import (
    CUT,
    Answer,
    CutResponse,
    Fault,
    LoseRequest,
    RaceConditions,
    RefuseConnection,
    StaleList,
    StripConditions,
    Twice,
)
from holdfast.sim.proxy.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is matched (all that is given must hold), how often it fires, and the fault.

    ``condition`` is a header's name, or ``any``, or ``none``. ``nth`` (from 1) picks one match, ``times`` bounds how
    often the fault happens, ``probability`` is per match.
    """

    fault: Annotated[Fault, Field(discriminator="kind")]
    verb: str | None = None
    method: str | None = None
    prefix: str = ""
    condition: Literal["if-match", "if-none-match", "any", "none"] | None = None
    nth: int | None = None
    times: int | None = None
    probability: float = 1.0

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise Invalid(f"probability {self.probability} is not between 0 and 1")
        filtered = self.verb or self.method or self.prefix or self.condition
        if isinstance(self.fault, RefuseConnection) and filtered:
            raise Invalid("a rule that refuses connections cannot look at requests", remedy="use nth or probability")

    def matches(self, request: Request) -> bool:
        return (
            self.verb in (None, request.verb)
            and self.method in (None, request.method)
            and request.key.startswith(self.prefix)
            and self._condition_fits(request.condition)
        )

    def _condition_fits(self, given: str | None) -> bool:
        if self.condition is None:
            return True
        if self.condition in ("any", "none"):
            return (given is None) == (self.condition == "none")
        return given == self.condition


@dataclass(frozen=True, slots=True)
class Plan:
    rules: tuple[Rule, ...] = ()
    seed: int = 0

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, *rules: Rule, seed: int = 0) -> "Plan":
        return cls(rules, seed)

    @classmethod
    def parse(cls, text: str | bytes) -> "Plan":
        """From JSON; ``Invalid`` says what is wrong with it, and where."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in problem["loc"]) or "plan"
            raise Invalid(f"fault plan: {place}: {problem['msg']}", remedy="see docs/operate/fault-proxy.md") from error

    def json(self) -> str:
        return _ADAPTER.dump_json(self, exclude_defaults=False).decode()


_ADAPTER = TypeAdapter(Plan)


@dataclass(frozen=True, slots=True)
class Choice:
    """``draw`` (0 to 1) is for what the fault itself leaves to chance."""

    fault: Fault | None
    draw: float = 0.0


class Chooser:
    """A plan at work: its counters and generators."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._tallies = [_Tally(rule, random.Random(f"{plan.seed}/{place}")) for place, rule in enumerate(plan.rules)]
        lags = [rule.fault.lag for rule in plan.rules if isinstance(rule.fault, StaleList)]
        self.lists_to_keep = max(lags, default=0)
        """How many older answers of one listing a rule may ask for."""

    def refuses_connection(self) -> bool:
        return self._first([tally for tally in self._tallies if tally.on_connections]).fault is not None

    def choose(self, request: Request) -> Choice:
        return self._first([t for t in self._tallies if not t.on_connections and t.rule.matches(request)])

    def _first(self, matching: "Sequence[_Tally]") -> Choice:
        chosen = Choice(None)
        for tally in matching:
            draw = tally.fires(free=chosen.fault is None)
            if draw is not None:
                chosen = Choice(tally.rule.fault, draw)
        return chosen


class _Tally:
    def __init__(self, rule: Rule, rng: random.Random) -> None:
        self.rule = rule
        self.on_connections = isinstance(rule.fault, RefuseConnection)
        self._rng = rng
        self._matched = 0
        self._fired = 0

    def fires(self, *, free: bool) -> float | None:
        """Count one match; the draw if the rule fires on it. It cannot when an earlier rule has (not ``free``)."""
        self._matched += 1
        lucky, draw = self._rng.random() < self.rule.probability, self._rng.random()
        wanted = self.rule.nth in (None, self._matched) and (self.rule.times is None or self._fired < self.rule.times)
        if not (free and lucky and wanted):
            return None
        self._fired += 1
        return draw


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
    """``lossy``, and on top lost requests, 503 on everything and 409 on conditional writes."""
    return Plan(
        (
            Rule(fault=Answer(409), verb="put", condition="any", probability=0.05),
            Rule(fault=Answer(503), probability=0.05),
            Rule(fault=LoseRequest(), probability=0.05),
            *lossy(seed).rules,
        ),
        seed,
    )


def no_conditions(seed: int = 0) -> Plan:
    """A server that ignores the conditions of writes."""
    return Plan.of(Rule(fault=StripConditions(), verb="put"), seed=seed)


def racing(seed: int, pause_ms: float = 20) -> Plan:
    """A server that checks conditions, and then writes without them."""
    return Plan.of(Rule(fault=RaceConditions(pause_ms), verb="put", condition="any"), seed=seed)


def stale_lists(seed: int = 0) -> Plan:
    """A server whose listings are one behind."""
    return Plan.of(Rule(fault=StaleList(), verb="list"), seed=seed)


PRESETS = {"lossy": lossy, "rough": rough, "no-conditions": no_conditions, "racing": racing, "stale-lists": stale_lists}
