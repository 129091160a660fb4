"""Predicates as text: ``tier == "Gold" and profile.city startswith "S"``. Pure.

    or        := and ("or" and)*                     and := not ("and" not)*
    not       := "not" not | "(" or ")" | "true" | "false" | quantified | test
    quantified:= ("any" | "all") "(" or ")"          every path in it leads through one list: items[].kind
    test      := path comparison | "len" "(" path ")" operator number
    comparison:= operator value | ["not"] "in" "[" values "]" | "between" value "and" value
               | ["not"] texttest text ["nocase"] | "is" ["not"] "null"
    texttest  := "equals" | "contains" | "startswith" | "endswith" | "matches"
    path      := ["left." | "right."] name ("." name)*     "[]" marks the list, where the type does not say it
    value     := text | number | "true" | "false" | "null"
               | ("date" | "datetime" | "decimal" | "bytes") text

``parse`` needs the declared types, and raises ``Misread`` with the column at which it understood no more, or
``InvalidQuery`` for a field or a value that does not fit. ``render.to_text`` writes what is read back as it was.

Names are Unicode identifiers, or any text between backquotes; texts stand between double or single quotes, with the
escapes of JSON. The position of a token is the number of characters before it.
"""

import base64
import json
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, cast, get_args

from holdfast.ontology.types.errors import InvalidQuery
from holdfast.ontology.types.expressions.ast import (
    And,
    Between,
    Comparison,
    End,
    FieldPath,
    In,
    IsNotNull,
    IsNull,
    Length,
    Not,
    Operator,
    Or,
    Predicate,
    Quantified,
    Text,
    TextOperator,
)
from holdfast.ontology.types.expressions.fitting import fitted, item_node, lists_in, node_at, require_text
from holdfast.ontology.types.expressions.text_match import check_pattern
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.typespec import Anything, Node, without_null

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


OPERATORS: tuple[Operator, ...] = get_args(Operator)
TEXT_TESTS: tuple[TextOperator, ...] = get_args(TextOperator)
MARKED = {"date", "datetime", "decimal", "bytes"}


class Target(NamedTuple):
    """A path as it was written: where it leads, what is there, and the list that it leads through."""

    path: FieldPath
    node: Node
    label: str
    through: FieldPath | None = None


def parse(source: str, info: TypeInfo) -> Predicate:
    """The predicate about rows of this type that the text says."""
    try:
        return _Parser(source, info).whole()
    except RecursionError as error:
        raise InvalidQuery(
            "the condition is nested too deeply", remedy="use in [...], or join conditions with and and or one by one"
        ) from error


class _Parser:
    def __init__(self, source: str, info: TypeInfo) -> None:
        self._source, self._info = source, info
        self._tokens, self._next = tokens(source), 0
        self._list: FieldPath | None = None
        self._quantified = False

    # --- tokens ---

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _taken(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _is(self, *words: str) -> bool:
        token = self._token
        return token.plain and token.kind in ("name", "symbol") and token.value in words

    def _accept(self, *words: str) -> bool:
        if not self._is(*words):
            return False
        self._next += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._expected(f'"{word}"')

    def _expected(self, what: str) -> Misread:
        return Misread(self._source, self._token.position, f"expected {what}, found {self._token}")

    def _checked(self, token: Token, check: Callable[[], Any]) -> Any:
        """What ``check`` gives; its complaint is about this token."""
        try:
            return check()
        except Misread:
            raise
        except InvalidQuery as error:
            raise Misread(self._source, token.position, str(error), remedy=error.remedy) from error

    # --- grammar ---

    def whole(self) -> Predicate:
        found = self._or()
        if self._token.kind != "end":
            raise self._expected('"and", "or" or the end')
        return found

    def _or(self) -> Predicate:
        terms = [self._and()]
        while self._accept("or"):
            terms.append(self._and())
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def _and(self) -> Predicate:
        terms = [self._not()]
        while self._accept("and"):
            terms.append(self._not())
        return terms[0] if len(terms) == 1 else And(tuple(terms))

    def _not(self) -> Predicate:
        if self._accept("not"):
            return Not(self._not())
        if self._accept("("):
            found = self._or()
            self._expect(")")
            return found
        if self._accept("true"):
            return And(())
        if self._accept("false"):
            return Or(())
        if self._is("any", "all"):
            return self._quantifier()
        return self._test()

    def _quantifier(self) -> Predicate:
        token = self._taken()
        if self._quantified:
            raise Misread(self._source, token.position, "any and all do not nest")
        self._expect("(")
        self._quantified = True
        where = self._or()
        self._expect(")")
        through, self._list, self._quantified = self._list, None, False
        if through is None:
            raise Misread(
                self._source, token.position, f"{token.value}(...) asks about the items of a list, as in items[].kind"
            )
        return Quantified("any" if token.value == "any" else "all", through, where)

    def _test(self) -> Predicate:
        if self._accept("len"):
            return self._length()
        start = self._token
        target = self._target()
        self._enter(start, target)
        if self._token.kind == "symbol" and self._token.value in OPERATORS:
            return self._comparison(target)
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("null")
            return IsNotNull(target.path) if negated else IsNull(target.path)
        negated = self._accept("not")
        found = self._word(target)
        return Not(found) if negated else found

    def _word(self, target: Target) -> Predicate:
        if self._accept("in"):
            return self._in(target)
        if self._accept("between"):
            return self._between(target)
        if self._is(*TEXT_TESTS):
            return self._text(target)
        words = ", ".join(f'"{word}"' for word in ("in", "between", "is", *TEXT_TESTS))
        raise self._expected(f"a comparison such as ==, or one of {words}")

    def _length(self) -> Predicate:
        self._expect("(")
        start = self._token
        target = self._target()
        self._enter(start, target)
        self._expect(")")
        self._checked(start, lambda: item_node(without_null(target.node)[0], target.label))
        operator = self._operator()
        if self._token.kind != "number" or not self._token.value.lstrip("-").isdigit():
            raise self._expected("a whole number")
        return Length(target.path, operator, int(self._number(self._taken())))

    def _operator(self) -> Operator:
        if self._token.kind != "symbol" or self._token.value not in OPERATORS:
            raise self._expected(" or ".join(OPERATORS))
        return cast("Operator", self._taken().value)

    def _comparison(self, target: Target) -> Predicate:
        operator, start = self._operator(), self._token
        value = self._value()
        if value is None:
            if operator not in ("==", "!="):
                raise Misread(self._source, start.position, "nothing is smaller or greater than null")
            return IsNull(target.path) if operator == "==" else IsNotNull(target.path)
        reading, stored = self._fitted(start, target, value)
        return Comparison(target.path, operator, stored, reading)

    def _in(self, target: Target) -> Predicate:
        found: list[tuple[Any, Any]] = []
        with_null = False
        if not self._accept("[]"):
            self._expect("[")
            while True:
                start = self._token
                value = self._value()
                with_null = with_null or value is None
                if value is not None:
                    found.append(self._fitted(start, target, value))
                if not self._accept(","):
                    break
            self._expect("]")
        readings = dict.fromkeys(reading for reading, _ in found)
        parts: list[Predicate] = [
            In(target.path, tuple(value for kind, value in found if kind == reading), reading) for reading in readings
        ]
        if with_null:
            parts.append(IsNull(target.path))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _between(self, target: Target) -> Predicate:
        first = self._token
        reading, low = self._fitted(first, target, self._value())
        self._expect("and")
        second = self._token
        other, high = self._fitted(second, target, self._value())
        if reading != other:
            raise Misread(self._source, second.position, "the two ends of between are of different types")
        return Between(target.path, low, high, reading)

    def _text(self, target: Target) -> Predicate:
        word = self._taken()
        self._checked(word, lambda: require_text(target.node, target.label))
        if self._token.kind != "text":
            raise self._expected("a text in quotes")
        value = self._taken()
        if word.value == "matches":
            self._checked(value, lambda: check_pattern(value.value))
        return Text(target.path, cast("TextOperator", word.value), value.value, self._accept("nocase"))

    # --- values ---

    def _fitted(self, token: Token, target: Target, value: Any) -> Any:
        if value is None:
            raise Misread(self._source, token.position, "null cannot stand here")
        return self._checked(token, lambda: fitted(target.node, value, target.label, literal=True))

    def _value(self) -> Any:
        """A Python value; None for null."""
        token = self._token
        if token.kind == "text":
            return self._taken().value
        if token.kind == "number":
            return self._number(self._taken())
        if self._accept("true", "false"):
            return token.value == "true"
        if self._accept("null"):
            return None
        if self._is(*MARKED) and self._tokens[self._next + 1].kind == "text":
            self._next += 1
            return self._marked(token.value, self._taken())
        what = "a value: a text in quotes, a number, true, false, null or date, datetime, decimal, bytes"
        # The commonest slip: tier == gold.
        meant = f"write {quoted_text(token.value)}, if it is a text" if token.kind == "name" else None
        raise Misread(self._source, token.position, f"expected {what}, found {token}", remedy=meant)

    def _number(self, token: Token) -> int | float:
        try:
            return int(token.value) if token.value.lstrip("-").isdigit() else float(token.value)
        except ValueError as error:  # Python does not read more than some thousand digits
            raise Misread(self._source, token.position, "this number is too long") from error

    def _marked(self, kind: str, token: Token) -> Any:
        read: dict[str, Callable[[str], Any]] = {
            "date": date.fromisoformat,
            "datetime": datetime.fromisoformat,
            "decimal": Decimal,
            "bytes": lambda text: base64.b64decode(text, validate=True),
        }
        try:
            return read[kind](token.value)
        except (ValueError, ArithmeticError) as error:
            raise Misread(self._source, token.position, f"{token} is not a {kind}") from error

    # --- paths ---

    def _target(self) -> Target:
        start = self._token
        end: End = "own"
        if self._is("left", "right") and self._tokens[self._next + 1].value == ".":
            end = cast("Literal['left', 'right']", self._taken().value)
            self._next += 1
        parts, marked = [self._name("the name of a field")], -1
        while True:
            if self._accept("[]"):
                if marked >= 0:
                    raise Misread(self._source, start.position, "a path leads through one list")
                marked = len(parts)
            elif self._accept("."):
                parts.append(self._name("a name"))
            else:
                break
        found: Target = self._checked(start, lambda: self._resolved(end, parts, marked))
        return found

    def _name(self, what: str) -> str:
        if self._token.kind != "name":
            raise self._expected(what)
        return self._taken().value

    def _resolved(self, end: End, parts: list[str], marked: int) -> Target:
        field, label = parts[0], f"{self._info.name}.{parts[0]}"
        node = self._info.node_of(end, field)
        if marked < 0 and self._quantified:
            marked = _list_in(node, parts, label)
        if marked < 0:
            return Target(FieldPath(end, field, tuple(parts[1:])), node_at(node, tuple(parts[1:]), label), label)
        if not self._quantified:
            raise InvalidQuery(
                f"{label}: items of a list are asked about inside any(...) or all(...)",
                remedy="write any(items[].kind)",
            )
        outer, steps = tuple(parts[1:marked]), tuple(parts[marked:])
        item = item_node(without_null(node_at(node, outer, label))[0], label)
        through = FieldPath(end, field, outer)
        return Target(FieldPath("item", "", steps), node_at(item, steps, f"{label}[]"), label, through)

    def _enter(self, start: Token, target: Target) -> None:
        """Under a quantifier all paths lead through the same list."""
        if not self._quantified:
            return
        if target.through is None or (self._list is not None and self._list != target.through):
            raise Misread(
                self._source, start.position, "every path inside any(...) or all(...) leads through the same list"
            )
        self._list = target.through


def _list_in(node: Node, parts: list[str], label: str) -> int:
    """How many parts lead to the list on the path, by the declared types; -1 if there is none."""
    for count in range(1, len(parts) + 1):
        inner = without_null(node_at(node, tuple(parts[1:count]), label))[0]
        if lists_in(inner):
            return count
        if isinstance(inner, Anything):
            raise InvalidQuery(f"{label} may hold anything", remedy="mark the list with [], as in items[].kind")
    return -1
