"""An older client on a newer store is refused before it can misread anything."""

from pathlib import Path

import pytest

from holdfast import objects
from holdfast.base import codec
from holdfast.errors import Corrupt, HoldfastError, Incompatible
from holdfast.objects.open import FORMAT_KEY, FORMAT_NAME, check_format


async def opened_over(folder: Path, body: bytes | None) -> int:
    async with objects.open(f"file:{folder}", any_format=True) as store:
        if body is not None:
            await store.put(FORMAT_KEY, body)
    async with objects.open(f"file:{folder}") as store:
        return await check_format(store)


def marker(version: int) -> bytes:
    return codec.encode(codec.stamp({}, format_name=FORMAT_NAME, version=version, write_id="w"))


@pytest.mark.parametrize("body", [None, marker(1)])
async def test_a_store_without_a_mark_is_of_the_first_version(tmp_path: Path, body: bytes | None) -> None:
    assert await opened_over(tmp_path / "store", body) == 1


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (marker(2), Incompatible, r"meta/format.json: holdfast.store version 2 is newer"),
        (b"?", Corrupt, r"meta/format.json: not JSON"),
    ],
)
async def test_a_newer_store_and_a_damaged_mark_are_refused(
    tmp_path: Path, body: bytes, error: type[HoldfastError], message: str
) -> None:
    with pytest.raises(error, match=message):
        await opened_over(tmp_path / "store", body)
