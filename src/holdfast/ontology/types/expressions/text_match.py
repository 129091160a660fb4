"""Text predicates in this process, exactly as DuckDB has them.

Folding is by single code points, without regard to their neighbours. Patterns are those of RE2: Arrow carries the same
engine as DuckDB, so nothing has to be restricted, and no pattern can take exponential time. It is loaded by the first
pattern: declaring types must not wait for it.
"""

from functools import lru_cache

from holdfast.ontology.types.errors import InvalidQuery
from holdfast.ontology.types.expressions.ast import TextOperator

_CAPITAL_I_WITH_DOT = "\u0130"
"""The one code point whose lower case is two of them in Python; DuckDB knows the simple mapping alone."""


def fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    return "".join(["i" if each == _CAPITAL_I_WITH_DOT else each.lower() for each in text])


def pattern_text(pattern: str, *, folded: bool) -> str:
    """The pattern as engines get it: what they might take for granted is said."""
    return f"(?i-ms){pattern}" if folded else f"(?-ims){pattern}"


@lru_cache(maxsize=256)
def check_pattern(pattern: str) -> str:
    """The pattern, or ``InvalidQuery`` if RE2 does not take it."""
    import pyarrow as pa  # noqa: PLC0415  # see above
    import pyarrow.compute as pc  # noqa: PLC0415  # declaring a type must not load Arrow

    try:
        pc.match_substring_regex(pa.array([""]), pattern_text(pattern, folded=False))
    except pa.ArrowInvalid as error:
        reason = str(error).partition(": ")[2].replace(pattern_text("", folded=False), "")
        raise InvalidQuery(
            f"{pattern!r} is not a regular expression ({reason})",
            remedy="patterns are those of RE2: without look-around and without back references",
        ) from error
    return pattern


def holds(operator: TextOperator, text: str, value: str, *, folded: bool) -> bool:
    if operator == "matches":
        import pyarrow as pa  # noqa: PLC0415  # see above
        import pyarrow.compute as pc  # noqa: PLC0415  # declaring a type must not load Arrow

        return pc.match_substring_regex(pa.array([text]), pattern_text(value, folded=folded))[0].as_py() is True
    if folded:
        text, value = fold(text), fold(value)
    match operator:
        case "equals":
            return text == value
        case "contains":
            return value in text
        case "startswith":
            return text.startswith(value)
        case "endswith":
            return text.endswith(value)
