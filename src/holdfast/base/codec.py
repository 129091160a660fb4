"""Canonical JSON: one value has one byte form (sorted keys, compact, UTF-8), so hashes and read-backs are exact.

Control documents of our own carry ``format``, ``version`` and ``write_id``. A document of a newer version than this
code knows is refused (``Incompatible``), never half-read. Unknown fields are the reader's to preserve.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.base.errors import Corrupt, Incompatible, Invalid

Document = dict[str, Any]

MALFORMED = (AttributeError, LookupError, TypeError, ValueError, OverflowError)
"""What taking a document apart raises if it is not of the shape that was expected, whatever stands in it."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _make_encoder() -> Callable[[Mapping[str, Any]], str]:
    """``JSONEncoder.encode`` sets its C part up anew for every document, which takes longer than a small document."""
    plain = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    # No table of what is being encoded (the first argument): what contains itself ends as a RecursionError.
    write = make(None, plain.default, json.encoder.encode_basestring, None, ":", ",", True, False, False)
    return lambda document: "".join(write(document, 0))


_encode = _make_encoder()


def encode(document: Mapping[str, Any]) -> bytes:
    try:
        return _encode(document).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"value has no JSON form: {error}") from error


def decode(body: bytes, *, key: str) -> Document:
    """The JSON object in ``body``; ``key`` is only for the message."""
    try:
        value = json.loads(body)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()  # half a character has no bytes, in no key and no hash
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{key}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise Corrupt(f"{key}: a JSON object was expected, found {type(value).__name__}")
    return value


def decode_schema(body: bytes, schema: str, *, key: str) -> Document:
    """The JSON object in ``body``, if it says that it is of this schema."""
    document = decode(body, key=key)
    if document.get("schema") != schema:
        raise Incompatible(
            f"{key}: schema {document.get('schema')!r} is not {schema!r}",
            remedy="upgrade holdfast on this machine, or find out who wrote this object",
        )
    return document


def stamp(document: Mapping[str, Any], *, format_name: str, version: int, write_id: str) -> Document:
    """The document with the three fields that mark a control object of ours."""
    return {**document, "format": format_name, "version": version, "write_id": write_id}


def expect(document: Document, *, format_name: str, newest: int, key: str) -> int:
    """The document's version, after checking that it is of this format and not newer than we can read."""
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
