"""Canonical JSON: every value has one encoding (sorted keys, compact, UTF-8), which can be hashed and compared.

Our control documents have ``format``, ``version`` and ``write_id``. A document with a newer version than this code
supports is refused (``Incompatible``) and never read in part. Readers preserve unknown fields.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from holdfast.base.errors import Corrupt, Incompatible, Invalid

Document = dict[str, Any]

MALFORMED = (AttributeError, LookupError, TypeError, ValueError, OverflowError)
"""Exceptions of code that reads fields of a document which does not have the expected shape."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encode(document: Mapping[str, Any]) -> bytes:
    try:
        return _encode(document).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"value has no JSON form: {error}") from error


def json_number(value: float) -> float | str:
    """The number, or its name as a string if JSON has no number for it: NaN and infinities."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def decode(body: bytes, *, key: str) -> Document:
    """The JSON object in ``body``. ``key`` is used in error messages only."""
    try:
        value = json.loads(body)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8 encoding
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{key}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise Corrupt(f"{key}: a JSON object was expected, found {type(value).__name__}")
    return value


def check_schema(document: Document, schema: str, *, key: str) -> None:
    """``Incompatible`` if the document does not name this schema."""
    if document.get("schema") != schema:
        raise Incompatible(
            f"{key}: schema {document.get('schema')!r} is not {schema!r}",
            remedy="upgrade holdfast on this machine, or find out who wrote this object",
        )


def stamp(document: Mapping[str, Any], *, format_name: str, version: int, write_id: str) -> Document:
    """The document with the three fields of our control documents."""
    return {**document, "format": format_name, "version": version, "write_id": write_id}


def expect(document: Document, *, format_name: str, newest: int, key: str) -> int:
    """The document's version, which must be of this format and not newer than ``newest``."""
    if document.get("format") != format_name:
        raise Corrupt(f"{key}: format is {document.get('format')!r}, expected {format_name!r}")
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise Corrupt(f"{key}: version {version!r} is not a positive whole number")
    if version > newest:
        raise Incompatible(
            f"{key}: {format_name} version {version} is newer than this client reads (up to {newest})",
            remedy="upgrade holdfast on this machine",
        )
    return version
