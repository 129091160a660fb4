"""Validation by pydantic, of whole objects and of single fields.

The types that pydantic validates are made from nodes: a time without a zone is taken as UTC, and any TypedDict is
accepted. Its errors become ``InvalidValue``, which names type and field.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NotRequired, Union

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from typing_extensions import TypedDict

from holdfast.ontology.types.codecs import place_text, shown
from holdfast.ontology.types.errors import InvalidType, InvalidValue
from holdfast.ontology.types.readings import in_utc
from holdfast.ontology.types.typespec import Anything, Choice, DictOf, ListOf, Node, OneOf, Primitive, Record, Ref

SHOWN = 3
"""Errors in one message."""


class Validator:
    """Validates the fields of one type."""

    def __init__(self, type_name: str, fields: Mapping[str, Node]) -> None:
        self._type_name = type_name
        self._annotations = {name: pydantic_type(node) for name, node in fields.items()}
        whole = _typed_dict(type_name)
        _fill(whole, self._annotations)
        try:
            self._whole = TypeAdapter(whole).validator.validate_python
        except (PydanticUserError, PydanticSchemaGenerationError) as error:
            raise InvalidType(f"{type_name}: {str(error).splitlines()[0]}") from error
        self._single: dict[str, Callable[[Any], Any]] = {}
        self._many: dict[str, Callable[[Any], Any]] = {}

    def all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """All fields of an object."""
        try:
            return self._whole(values)  # type: ignore[no-any-return]  # a TypedDict is a dict
        except ValidationError as error:
            raise self._invalid(error) from error

    def one(self, name: str, value: Any) -> Any:
        """One field."""
        validate = self._single.get(name)
        if validate is None:
            validate = self._single[name] = TypeAdapter(self._annotations[name]).validator.validate_python
        try:
            return validate(value)
        except ValidationError as error:
            raise self._invalid(error, name) from error

    def many(self, name: str, values: list[Any]) -> list[Any]:
        """One field of many objects."""
        validate = self._many.get(name)
        if validate is None:
            annotation: Any = list[self._annotations[name]]  # type: ignore[name-defined]  # known at run time only
            validate = self._many[name] = TypeAdapter(annotation).validator.validate_python
        try:
            return validate(values)  # type: ignore[no-any-return]  # a list
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            row = int(first["loc"][0])
            place = place_text((name, *first["loc"][1:]))
            message = f"{self._type_name}.{place}, row {row}: {first['msg']}, found {shown(first['input'])}"
            raise InvalidValue(message, type_name=self._type_name, field=name, row=row) from error

    def _invalid(self, error: ValidationError, name: str | None = None) -> InvalidValue:
        errors = error.errors(include_url=False, include_context=False)
        prefix = () if name is None else (name,)
        found = [_described(self._type_name, each["type"], (*prefix, *each["loc"]), each) for each in errors[:SHOWN]]
        more = f"; and {len(errors) - SHOWN} more" if len(errors) > SHOWN else ""
        place = (*prefix, *errors[0]["loc"])
        return InvalidValue(
            "; ".join(found) + more,
            type_name=self._type_name,
            field=str(place[0]) if place else None,
            remedy=self._suggestion([each["loc"] for each in errors if each["type"] == "extra_forbidden"]),
        )

    def _suggestion(self, unknown: list[tuple[Any, ...]]) -> str | None:
        """A remedy for fields that the type does not have."""
        names = [str(place[0]) for place in unknown if len(place) == 1]
        close = [near for name in names for near in get_close_matches(name, self._annotations, n=1)]
        if close:
            return f"did you mean {', '.join(close)}?"
        return f"its fields are {', '.join(self._annotations)}" if names else None


def _described(type_name: str, kind: str, place: Iterable[Any], error: Any) -> str:
    where = f"{type_name}.{place_text(place)}"
    match kind:
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden":
            return f"{type_name} has no field {place_text(place)}"
    return f"{where}: {error['msg']}, found {shown(error['input'])}"


def pydantic_type(node: Node) -> Any:
    return _Types().of(node)


class _Types:
    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def of(self, node: Node) -> Any:
        made = self._plain(node)
        return Annotated[made, *node.metadata] if node.metadata else made

    def _plain(self, node: Node) -> Any:
        match node:
            case Primitive(python=python):
                return Annotated[datetime, AfterValidator(in_utc)] if python is datetime else python
            case Anything():
                return Any
            case Choice(python=None, values=values):
                return Literal[values]
            case Choice(python=python):
                return python
            case ListOf(item=item):
                return list[self.of(item)]  # type: ignore[misc]  # known at run time only
            case DictOf(value=value):
                return dict[str, self.of(value)]  # type: ignore[misc]  # as above
            case OneOf(members=members):
                return Union[tuple(self.of(member) for member in members)]  # noqa: UP007  # made at run time
            case Record(flavour="typed_dict"):
                return self._typed_dict(node)
            case Record(python=python):
                return python
            case Ref(python=python):
                return self._made.get(python, python)
        raise TypeError(f"{node!r} is not a node")

    def _typed_dict(self, node: Record) -> Any:
        """A copy of the TypedDict: before Python 3.12 pydantic does not accept those of ``typing``."""
        made = self._made[node.python] = _typed_dict(node.name)
        _fill(made, {name: self.of(field) for name, field in node.fields.items()}, node.optional)
        return made


def _typed_dict(name: str) -> Any:
    make: Any = TypedDict  # checkers want the fields written out
    made = make(name, {})
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made


def _fill(made: Any, hints: Mapping[str, Any], optional: frozenset[str] = frozenset()) -> None:
    """Set the fields of a TypedDict after it was made, so that they can refer to it."""
    made.__annotations__ = {name: NotRequired[hint] if name in optional else hint for name, hint in hints.items()}
    made.__required_keys__ = frozenset(hints) - optional
    made.__optional_keys__ = optional
