"""A store with a newer format is refused before this client can misread anything."""

from pathlib import Path

import pytest

from holdfast import objects
from holdfast.base import codec
from holdfast.errors import Corrupt, HoldfastError, Incompatible
from holdfast.objects.open import FORMAT_KEY, FORMAT_NAME, check_format


def marker(version: int) -> bytes:
    return codec.encode(codec.stamp({}, format_name=FORMAT_NAME, version=version, write_id="w"))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (None, None, ""),
        (marker(1), None, ""),
        (marker(2), Incompatible, r"meta/format.json: holdfast.store version 2 is newer"),
        (b"?", Corrupt, r"meta/format.json: not JSON"),
    ],
)
async def test_the_format_is_checked_when_a_store_is_opened(
    tmp_path: Path, body: bytes | None, error: type[HoldfastError] | None, message: str
) -> None:
    address = f"file:{tmp_path / 'store'}"
    async with objects.open(address, any_format=True) as store:
        if body is not None:
            await store.put(FORMAT_KEY, body)
    if error is not None:
        with pytest.raises(error, match=message):
            await objects.open(address)
    else:
        async with objects.open(address) as store:
            assert await check_format(store) == 1
