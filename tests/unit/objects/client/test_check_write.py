"""What is no body and no mode is refused before anything is written, on every store alike."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import objects
from holdfast.base.errors import Invalid
from holdfast.objects.store import CREATE, Create, IfMatch, Lost, Version


@pytest.mark.parametrize("uri", ["memory:", "file:{folder}"])
@pytest.mark.parametrize("body", ["text", Path("name"), [b"a", b"b"], None, 5], ids=repr)
async def test_only_bytes_are_bytes(uri: str, body: Any, tmp_path: Path) -> None:
    async with objects.open(uri.format(folder=tmp_path / "store")) as store:
        with pytest.raises(Invalid, match=r"'k': the body is \w+, not bytes"):
            await store.put("k", body)
        assert await store.find("k") is None


@pytest.mark.parametrize("uri", ["memory:", "file:{folder}"])
@pytest.mark.parametrize("mode", ["create", Create, IfMatch, None, Version("v")], ids=repr)
async def test_a_mode_of_the_wrong_kind_overwrites_nothing(uri: str, mode: Any, tmp_path: Path) -> None:
    async with objects.open(uri.format(folder=tmp_path / "store")) as store:
        await store.put("k", b"before")
        with pytest.raises(Invalid, match="is not a mode of writing"):
            await store.put("k", b"after", mode)
        with pytest.raises(Invalid, match="None is not a version"):
            await store.put("k", b"after", IfMatch(None))  # type: ignore[arg-type]
        assert (await store.get("k")).body == b"before"


async def test_other_kinds_of_bytes_are_taken() -> None:
    async with objects.open("memory:") as store:
        await store.put("k", bytearray(b"one"))  # type: ignore[arg-type]
        await store.put("l", memoryview(b"two"))  # type: ignore[arg-type]
        assert [(await store.get(key)).body for key in ("k", "l")] == [b"one", b"two"]
        assert isinstance(await store.put("k", b"x", CREATE), Lost)
