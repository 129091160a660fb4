"""An older client on a newer store is refused before it can misread anything."""

from pathlib import Path

import pytest

from holdfast import objects
from holdfast.base import codec
from holdfast.errors import Corrupt, Incompatible
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


async def test_a_newer_store_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match=r"meta/format.json: holdfast.store version 2 is newer") as refused:
        await opened_over(tmp_path / "store", marker(2))
    assert refused.value.remedy == "upgrade holdfast on this machine"


async def test_a_damaged_mark_is_named(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match=r"meta/format.json: not JSON"):
        await opened_over(tmp_path / "store", b"?")


async def test_looking_costs_one_request(tmp_path: Path) -> None:
    async with objects.open(f"file:{tmp_path / 'store'}") as store:
        assert store.usage.by_verb == {"get": 1}
