"""Conditions on the labels of series: ``name=value``, ``name!=value``, ``name=~pattern``, ``name!~pattern``.

A missing label counts as empty text. A pattern is a regular expression of RE2, as in DuckDB and Arrow, and must match
the whole value; its dot is any character, also a newline. ``agent`` is the sender, as if it were a label; a label of a
record that is called ``agent`` itself appears as ``exported_agent``.

For each chunk a generation lists the values that the labels of its series have (``LabelValues``), so that readers skip
chunks in which nothing can match, without a request. No series has a label that is not listed; a label with None has
too many values to list. Of series with very many labels nothing is listed.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.columns import Flags
from holdfast.telemetry.rollup.points import SeriesKey

AGENT = "agent"
EXPORTED_AGENT = "exported_agent"
MAX_PATTERN = 1_000
"""Characters of a pattern that users give: RE2 takes memory by the length of a pattern."""
_EMPTY = pa.nulls(1, pa.string())  # made without ``pa.array``, which imports pandas


class Operator(StrEnum):
    EQUAL = "="
    NOT_EQUAL = "!="
    MATCHES = "=~"
    NOT_MATCHES = "!~"


_OPERATOR = re.compile(r"=~|!~|!=|=")


@dataclass(frozen=True)
class Matcher:
    name: str
    operator: Operator
    value: str

    @classmethod
    def parse(cls, text: str) -> "Matcher":
        operator = _OPERATOR.search(text)
        name = "" if operator is None else text[: operator.start()].strip()
        if operator is None or not name or any(mark in name for mark in "!~{}"):
            raise Invalid(
                f"{text!r} is not a condition on a label",
                remedy="write it like cpu=0, mode!=idle, 'path=~/api/.*' or 'x!~a|b'",
            )
        value = text[operator.end() :].strip()
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        matcher = cls(name, Operator(operator[0]), value)
        if matcher.by_pattern:
            matcher.check()
        return matcher

    @property
    def by_pattern(self) -> bool:
        return self.operator in (Operator.MATCHES, Operator.NOT_MATCHES)

    @property
    def negative(self) -> bool:
        return self.operator in (Operator.NOT_EQUAL, Operator.NOT_MATCHES)

    @cached_property
    def anchored(self) -> str:
        return f"^(?s:{self.value})$"

    def matches(self, values: Iterable[str]) -> Flags:
        """Which of these values of the label fulfil the condition."""
        column = pa.array(list(values), pa.string())
        if self.by_pattern:
            self.check()
            same = pc.match_substring_regex(column, self.anchored)
        else:
            same = pc.equal(column, self.value)
        found: Flags = same.to_numpy(zero_copy_only=False).astype(np.bool_)
        return ~found if self.negative else found

    def check(self) -> None:
        """The pattern must be valid by itself: inside of the anchors ``a)|(b`` would be valid, and match substrings."""
        check_pattern(self.value, f"{self}: ")

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"


Conditions = Mapping[str, str] | Iterable[str | Matcher] | None
"""Conditions as users give them: labels with their values, or texts such as ``cpu=0``."""


def matchers_of(where: Conditions, agent: str | None = None) -> tuple[Matcher, ...]:
    found: list[Matcher] = []
    if isinstance(where, Mapping):
        found = [Matcher(name, Operator.EQUAL, value) for name, value in where.items()]
    elif isinstance(where, str):
        found = [Matcher.parse(where)]
    elif where is not None:
        found = [each if isinstance(each, Matcher) else Matcher.parse(each) for each in where]
    if agent is not None:
        found.append(Matcher(AGENT, Operator.EQUAL, agent))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class AgentFilter:
    """The agents whose batches can fulfil some conditions."""

    wants: Callable[[str], bool]
    names: Collection[str] | None = None
    """If not None, no other agents are wanted."""

    @classmethod
    def of(cls, matchers: Iterable[Matcher]) -> "AgentFilter":
        conditions = [each for each in matchers if each.name == AGENT]
        names = [each.value for each in conditions if each.operator is Operator.EQUAL]
        return cls(lambda agent: all(each.matches([agent])[0] for each in conditions), names or None)


def check_pattern(pattern: str, where: str = "") -> str:
    """The pattern, if it is a regular expression of RE2, which takes linear time for every pattern and every text."""
    _check_length(pattern)
    return _valid(pattern, where)


def _valid(pattern: str, where: str = "") -> str:
    try:
        pc.match_substring_regex(_EMPTY, pattern)
    except pa.ArrowInvalid as error:
        reason = str(error).partition(": ")[2].removesuffix(f": {pattern}")
        raise Invalid(
            f"{where}{pattern!r} is not a regular expression ({reason})",
            remedy="write a pattern of RE2, such as api-.*",
        ) from error
    return pattern


def _check_length(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN:
        raise Invalid(
            f"a pattern has {len(pattern):,} characters; {MAX_PATTERN:,} are allowed", remedy="write a shorter one"
        )


def of_glob(glob: str) -> str:
    """The regular expression for a pattern of the shell: ``*``, ``?``, and sets such as ``[a-z]`` or ``[!0-9]``.

    A matcher of globs that tries each place for each star takes exponential time for some of them.
    """
    _check_length(glob)
    found, at = [], 0
    while at < len(glob):
        mark, at = glob[at], at + 1
        end = glob.find("]", at + 1 + glob.startswith("!", at)) if mark == "[" else -1
        if end > 0:
            inside = glob[at:end]
            negated = inside.startswith("!")
            members = inside[negated:].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace("^", "\\^")
            found.append(f"[{'^' * negated}{members}]")
            at = end + 1
        else:
            found.append({"*": ".*", "?": "."}.get(mark) or re.escape(mark))
    return _valid(f"(?s){''.join(found)}")


def matching(agents: Iterable[str], labels: Iterable[Mapping[str, str]], matchers: Iterable[Matcher]) -> Flags:
    """Which series fulfil all conditions."""
    names, sets = list(agents), [shown_labels(each.items()) for each in labels]
    found = np.ones(len(names), np.bool_)
    for matcher in matchers:
        values = names if matcher.name == AGENT else [each.get(matcher.name, "") for each in sets]
        found &= matcher.matches(values)
    return found


def shown_labels(labels: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Labels as answers have them. ``agent`` replaces ``exported_agent`` if a record has both."""
    own = dict(labels)
    if AGENT in own:
        own[EXPORTED_AGENT] = own.pop(AGENT)
    return own


LabelValues = Mapping[str, tuple[str, ...] | None]
"""By name; values in order, with an empty one for series that do not have the label."""

MAX_LABELS = 16
MAX_VALUES = 16
MAX_CHARACTERS = 64
"""Of a value that is listed."""


def label_values(series: Sequence[SeriesKey]) -> LabelValues | None:
    names = {name for key in series for name, _ in key.labels} | {AGENT}
    if len(names) > MAX_LABELS:
        return None
    found: dict[str, set[str]] = {name: set() for name in names}
    for key in series:
        labels = {**dict(key.labels), AGENT: key.agent}
        for name, values in found.items():
            if len(values) <= MAX_VALUES:
                values.add(labels.get(name, ""))
    return {name: _listed(values) for name, values in sorted(found.items())}


def _listed(values: set[str]) -> tuple[str, ...] | None:
    if len(values) > MAX_VALUES or any(len(value) > MAX_CHARACTERS for value in values):
        return None
    return tuple(sorted(values))


def may_match(values: LabelValues | None, matchers: Iterable[Matcher]) -> bool:
    """False if no series can have labels that fulfil all conditions."""
    if values is None:
        return True
    for matcher in matchers:
        if matcher.name == EXPORTED_AGENT:
            continue  # it is not listed: ``agent`` is the sender in ``LabelValues``
        listed = values.get(matcher.name, ("",))
        if listed is not None and not matcher.matches(listed).any():
            return False
    return True
