"""One value, one byte form; a newer format is refused, damage is named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base import codec
from holdfast.base.errors import Corrupt, Incompatible, Invalid

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(TEXT, VALUES, max_size=6)


@given(DOCUMENTS)
def test_a_document_is_decoded_as_it_was_encoded(document: dict[str, Any]) -> None:
    assert codec.decode(codec.encode(document), key="k") == document


@given(DOCUMENTS)
def test_the_encoding_equals_that_of_the_standard_library(document: dict[str, Any]) -> None:
    written = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    assert codec.encode(document) == written.encode()


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), b"bytes", {1, 2}, object(), "\ud800", [float("nan")], nested(100_000)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_json_form_is_refused(value: object) -> None:
    with pytest.raises(Invalid, match="value has no JSON form"):
        codec.encode({"value": value})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a":1}x', "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"[]", "a JSON object was expected, found list"),
        (b'"text"', "a JSON object was expected, found str"),
        (b"null", "a JSON object was expected, found NoneType"),
    ],
)
def test_an_error_of_a_damaged_document_names_its_key(body: bytes, reason: str) -> None:
    with pytest.raises(Corrupt, match=f"^meta/head.json: {reason}"):
        codec.decode(body, key="meta/head.json")


def test_a_stamp_names_format_version_and_write() -> None:
    def expect(**change: Any) -> int:
        document = codec.stamp({"value": 1}, format_name="holdfast.test", version=2, write_id="w")
        assert document == {"value": 1, "format": "holdfast.test", "version": 2, "write_id": "w"}
        return codec.expect({**document, **change}, format_name="holdfast.test", newest=2, key="k")

    assert [expect(), expect(version=1)] == [2, 1]
    with pytest.raises(Incompatible, match="version 3 is newer than this client reads") as caught:
        expect(version=3)
    assert "upgrade" in str(caught.value.remedy)
    for version in (0, -1, "1", 1.0, None, True):
        with pytest.raises(Corrupt, match="is not a positive whole number"):
            expect(version=version)
    for other in ("other", None):
        with pytest.raises(Corrupt, match=f"format is {other!r}"):
            expect(format=other)
