"""Records: dataclasses that are written as JSON documents and read back. The fields are declared once.

    @dataclass(frozen=True)
    class Session(Record):
        WHAT = "a session"
        session_id: str
        started_ns: Annotated[Moment, Field(alias="started_at")]

``document`` writes a field under its alias, ``parse`` reads it (pydantic checks the types), and fields that the class
does not declare are kept in ``extra`` and written again. Constructing a record checks nothing.

Errors: ``Corrupt`` for a document that does not fit, with the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

from holdfast.base import codec
from holdfast.base.clock import iso, parse_iso
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt

_EXTRA = "$extra"


def _moment(value: object) -> int:
    try:
        return parse_iso(value)  # type: ignore[arg-type]  # checked by what it raises
    except MALFORMED as error:
        raise ValueError("not a time") from error


def _check_time(text: str) -> str:
    _moment(text)
    return text


Moment = Annotated[int, BeforeValidator(_moment), PlainSerializer(iso)]
"""Nanoseconds since 1970, written as ISO 8601."""

Timestamp = Annotated[str, AfterValidator(_check_time)]
"""ISO 8601, kept as it was written."""

UNLESS_EMPTY = Field(exclude_if=lambda value: not value)
"""For a field that is left out of the document while it is empty or None."""


@dataclass(frozen=True)
class Record:
    WHAT: ClassVar[str] = "a document of this kind"
    """The kind of document, for error messages."""
    __pydantic_config__ = ConfigDict(coerce_numbers_to_str=True)

    extra: Annotated[Document, Field(alias=_EXTRA, exclude=True)] = field(
        default_factory=dict, compare=False, repr=False, kw_only=True
    )

    def document(self, **more: Any) -> Document:
        """The fields as a JSON document, then ``more``."""
        adapter, _ = _schema(type(self))  # type: ignore[arg-type]  # classes are hashable
        return {**self.extra, **adapter.dump_python(self, by_alias=True), **more}

    @classmethod
    def parse(cls, document: Mapping[str, Any], *, key: str) -> Self:
        """``key`` is used in error messages only."""
        adapter, names = _schema(cls)  # type: ignore[arg-type]  # as above
        extra = {name: value for name, value in document.items() if name not in names}
        try:
            return cast("Self", adapter.validate_python({**document, _EXTRA: extra}))
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, problem["loc"]))
            raise Corrupt(f"{key}: not {cls.WHAT} ({where}: {problem['msg']})") from error


@dataclass(frozen=True)
class ControlRecord(Record):
    """A record with the three fields of our control documents: format, version, write id."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def encode(self, write_id: str) -> bytes:
        return codec.encode(self.document(format=self.FORMAT, version=self.VERSION, write_id=write_id))

    @classmethod
    def decode(cls, body: bytes, *, key: str) -> Self:
        """``Incompatible`` for a version that is newer than this code."""
        document = codec.decode(body, key=key)
        codec.expect(document, format_name=cls.FORMAT, newest=cls.VERSION, key=key)
        return cls.parse(document, key=key)


@cache
def _schema(kind: type[Any]) -> tuple[TypeAdapter[Any], frozenset[str]]:
    adapter = TypeAdapter(kind)
    return adapter, frozenset(adapter.json_schema(mode="validation")["properties"])
