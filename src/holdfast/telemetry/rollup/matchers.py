"""Which series are meant: conditions on labels, ``name=value``, ``name!=value``, ``name=~pattern``, ``name!~pattern``.

A label that a series does not have counts as empty text. A pattern is a regular expression of RE2, which is what DuckDB
and Arrow have, and must fit all of the value; its dot is any character, the end of a line too. ``agent`` is the agent's
name, as if it were a label; a label of that name is out of reach.

A generation says in short which values the labels of a chunk's series have (``LabelValues``), so that its reader passes
over chunks in which nothing can match, without a request. A label that is not named has no value in any series; one
that is named with None has too many to list. Of series with very many labels nothing is said at all.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
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
"""How a label of a record is named that is called ``agent`` itself: ``agent`` is the sender."""
_NOTHING = pa.nulls(1, pa.string())  # made without ``pa.array``, which imports pandas


class Operator(StrEnum):
    IS = "="
    IS_NOT = "!="
    FITS = "=~"
    FITS_NOT = "!~"


_OPERATOR = re.compile(r"=~|!~|!=|=")
LONGEST_PATTERN = 1_000
"""Characters of a pattern that users give: RE2 takes memory by the length of a pattern."""


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
                f"{text!r} is no condition on a label",
                remedy="write it like cpu=0, mode!=idle, 'path=~/api/.*' or 'x!~a|b'",
            )
        value = text[operator.end() :].strip()
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        matcher = cls(name, Operator(operator[0]), value)
        if matcher.by_pattern:
            matcher._check()
        return matcher

    @property
    def by_pattern(self) -> bool:
        return self.operator in (Operator.FITS, Operator.FITS_NOT)

    @property
    def negative(self) -> bool:
        return self.operator in (Operator.IS_NOT, Operator.FITS_NOT)

    @cached_property
    def anchored(self) -> str:
        return f"^(?s:{self.value})$"

    def fits(self, values: Iterable[str]) -> Flags:
        """Which of these values of the label are meant."""
        column = pa.array(list(values), pa.string())
        if self.by_pattern:
            self._check()
            same = pc.match_substring_regex(column, self.anchored)
        else:
            same = pc.equal(column, self.value)
        found: Flags = same.to_numpy(zero_copy_only=False).astype(np.bool_)
        return ~found if self.negative else found

    def _check(self) -> None:
        """On its own: with what is put around it ``a)|(b`` would be one, and fit parts of a value."""
        check_pattern(self.value, f"{self}: ")

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"


def check_pattern(pattern: str, where: str = "") -> str:
    """The pattern, if it is a regular expression of RE2. RE2 takes linear time for every pattern and every text."""
    _check_length(pattern)
    try:
        pc.match_substring_regex(_NOTHING, pattern)
    except pa.ArrowInvalid as error:
        reason = str(error).partition(": ")[2].removesuffix(f": {pattern}")
        raise Invalid(
            f"{where}{pattern!r} is no regular expression ({reason})",
            remedy="write a pattern of RE2, such as api-.*",
        ) from error
    return pattern


def _check_length(pattern: str) -> None:
    if len(pattern) > LONGEST_PATTERN:
        raise Invalid(
            f"a pattern has {len(pattern):,} characters; {LONGEST_PATTERN:,} are allowed", remedy="write a shorter one"
        )


def of_glob(glob: str) -> str:
    """The regular expression for a pattern of the shell: ``*``, ``?``, and sets such as ``[a-z]`` or ``[!0-9]``.

    A matcher of globs that tries each place for each star takes exponential time for some of them."""
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
    return check_pattern(f"(?s){''.join(found)}")


def chosen(agents: Iterable[str], labels: Iterable[Mapping[str, str]], matchers: Iterable[Matcher]) -> Flags:
    """Of which series all conditions hold."""
    names, sets = list(agents), [shown_labels(each.items()) for each in labels]
    found = np.ones(len(names), np.bool_)
    for matcher in matchers:
        values = names if matcher.name == AGENT else [each.get(matcher.name, "") for each in sets]
        found &= matcher.fits(values)
    return found


def shown_labels(labels: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Labels as answers have them. ``agent`` replaces ``exported_agent`` if a record has both."""
    own = dict(labels)
    if AGENT in own:
        own[EXPORTED_AGENT] = own.pop(AGENT)
    return own


LabelValues = tuple[tuple[str, tuple[str, ...] | None], ...]
"""By name; values in order, with an empty one for series that do not have the label."""

MOST_LABELS = 16
MOST_VALUES = 16
LONGEST_VALUE = 64
"""Characters of a value that is listed."""


def label_values(series: Sequence[SeriesKey]) -> LabelValues | None:
    names = {name for key in series for name, _ in key.labels} | {AGENT}
    if len(names) > MOST_LABELS:
        return None
    found: dict[str, set[str]] = {name: set() for name in names}
    for key in series:
        labels = {**dict(key.labels), AGENT: key.agent}
        for name, values in found.items():
            if len(values) <= MOST_VALUES:
                values.add(labels.get(name, ""))
    return tuple((name, _short(values)) for name, values in sorted(found.items()))


def may_match(values: LabelValues | None, matchers: Iterable[Matcher]) -> bool:
    """False if no series can have labels for which all conditions hold."""
    if values is None:
        return True
    known = dict(values)
    for matcher in matchers:
        if matcher.name == EXPORTED_AGENT:
            continue  # it is not listed: ``agent`` is the sender there
        listed = known.get(matcher.name, ("",))
        if listed is not None and not matcher.fits(listed).any():
            return False
    return True


def _short(values: set[str]) -> tuple[str, ...] | None:
    if len(values) > MOST_VALUES or any(len(value) > LONGEST_VALUE for value in values):
        return None
    return tuple(sorted(values))
