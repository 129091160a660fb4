"""Which series are meant: conditions on labels, ``name=value``, ``name!=value``, ``name=~pattern``, ``name!~pattern``.

A label that a series does not have counts as empty text. A pattern is a regular expression of RE2, which is what DuckDB
and Arrow have, and must fit all of the value; its dot is any character, the end of a line too. ``agent`` is the agent's
name, as if it were a label; a label of that name is out of reach.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.columns import Flags

AGENT = "agent"
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
                remedy="write it like cpu=0, mode!=idle, path=~/api/.* or x!~a|b",
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
    names, sets = list(agents), list(labels)
    found = np.ones(len(names), np.bool_)
    for matcher in matchers:
        values = names if matcher.name == AGENT else [each.get(matcher.name, "") for each in sets]
        found &= matcher.fits(values)
    return found
