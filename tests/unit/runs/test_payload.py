"""Payloads: large values beside the journal, checked when they are read."""

import pytest

from holdfast.base.errors import Corrupt
from holdfast.runs.journal.payload import get_payload, put_payload
from tests.unit.runs.journals import Archive


@pytest.mark.parametrize("size", [0, 40_000, 3 * 1024 * 1024])
async def test_a_payload_comes_back(size: int) -> None:
    archive = Archive()
    body = b"\x00\xff" * (size // 2)
    reference = await put_payload(archive.store, archive.ambient, "r", body)
    assert archive.spent() == {"put": 1}
    assert reference.keys() == {"key", "sha256", "bytes"}
    assert await get_payload(archive.store, {**reference, "encoding": "bytes"}) == body
    assert archive.spent() == {"get": 1}


async def test_equal_values_have_keys_of_their_own() -> None:
    archive = Archive()
    first = await put_payload(archive.store, archive.ambient, "r", b"same")
    second = await put_payload(archive.store, archive.ambient, "r", b"same")
    assert first["key"] != second["key"]
    assert first["sha256"] == second["sha256"]


async def test_damage_is_noticed() -> None:
    archive = Archive()
    reference = await put_payload(archive.store, archive.ambient, "r", b"value")
    await archive.backend.put(reference["key"], b"eulav")
    with pytest.raises(Corrupt, match=reference["key"]):
        await get_payload(archive.store, reference)
    await archive.backend.delete(reference["key"])
    with pytest.raises(Corrupt, match="which does not exist"):
        await get_payload(archive.store, reference)
    with pytest.raises(Corrupt, match="without a key"):
        await get_payload(archive.store, {})
