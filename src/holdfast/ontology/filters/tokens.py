"""Words of the text form of predicates. Pure.

Names are Unicode identifiers, or any text between backquotes; texts stand between double or single quotes, with the
escapes of JSON. A position is the number of characters before a token.
"""

import json
import re
from typing import Literal, NamedTuple

from holdfast.ontology.filters.errors import InvalidQuery

RESERVED = frozenset({"and", "or", "not", "any", "all", "len", "true", "false", "left", "right", "inf", "nan"})
"""Words that begin something: a field of this name stands in backquotes."""

TokenKind = Literal["name", "text", "number", "symbol", "end"]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<number>-?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|(?:inf|nan)\b))
    | (?P<name>[^\W0-9]\w*)
    | (?P<symbol>==|!=|<=|>=|\[\]|[<>()\[\],.])
    )""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    kind: TokenKind
    value: str
    position: int
    plain: bool = True
    """Whether a name stands without quotes, so that it may be a word of the language."""

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else json.dumps(self.value, ensure_ascii=False)


class Misread(InvalidQuery):
    """A text that is not a predicate. ``position`` counts characters from 0."""

    def __init__(self, source: str, position: int, message: str, *, remedy: str | None = None) -> None:
        line = source.replace("\n", " ").replace("\t", " ")
        super().__init__(f"column {position + 1}: {message}\n  {line}\n  {' ' * position}^", remedy=remedy)
        self.position = position


def tokens(source: str) -> list[Token]:
    found: list[Token] = []
    position = 0
    while source[position:].strip():
        match = _TOKEN.match(source, position)
        if match is None:
            start = position + len(source[position:]) - len(source[position:].lstrip())
            quote = source[start] in "\"'`"
            message = "this quote is never closed" if quote else f"{source[start]!r} has no meaning here"
            message += "; to compare, write ==" if source[start] == "=" else ""
            raise Misread(source, start, message)
        found.append(_token(source, match))
        position = match.end()
    return [*found, Token("end", "", len(source))]


def _token(source: str, match: re.Match[str]) -> Token:
    group = match.lastgroup or ""
    start, value = match.start(group), match[group]
    match group:
        case "text":
            return Token("text", _unquoted(source, value, start), start)
        case "quoted":
            return Token("name", value.replace("``", "`"), start - 1, plain=False)
        case "number":
            return Token("number", value, start)
        case "name":
            return Token("name", value, start)
    return Token("symbol", value, start)


def _unquoted(source: str, literal: str, position: int) -> str:
    inner = literal[1:-1]
    if literal[0] == "'":
        inner = inner.replace("\\'", "'").replace('"', '\\"')
    try:
        text: str = json.loads(f'"{inner}"', strict=False)
        text.encode()
    except (ValueError, UnicodeEncodeError) as error:
        raise Misread(source, position, f"{literal} is not a text ({error})") from error
    return text


def name_text(name: str) -> str:
    """A name as it is written, so that it is read as the same name."""
    if re.fullmatch(r"[^\W0-9]\w*", name) and name not in RESERVED:
        return name
    return f"`{name.replace('`', '``')}`"


def quoted_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
