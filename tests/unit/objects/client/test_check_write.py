"""What is no body and no mode is refused before anything is written, on every store alike."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import objects
from holdfast.base.errors import Invalid
from holdfast.objects.store import Create, IfMatch, Version


async def test_only_bytes_and_modes_are_taken() -> None:
    async with objects.open("memory:") as store:
        await store.put("k", b"before")
        wrong: list[Any] = ["text", Path("name"), [b"a", b"b"], None, 5]
        for body in wrong:
            with pytest.raises(Invalid, match=r"'k': the body is \w+, not bytes"):
                await store.put("k", body)
        modes: list[Any] = ["create", Create, IfMatch, None, Version("v")]
        for mode in modes:
            with pytest.raises(Invalid, match="is not a mode of writing"):
                await store.put("k", b"after", mode)
        with pytest.raises(Invalid, match="None is not a version"):
            await store.put("k", b"after", IfMatch(None))  # type: ignore[arg-type]  # the very mistake
        with pytest.raises(Invalid, match="cannot start at -3"):
            await store.range("k", -3, 5)
        assert (await store.get("k")).body == b"before"
        await store.put("l", bytearray(b"one"))  # type: ignore[arg-type]  # other kinds of bytes are taken
        await store.put("m", memoryview(b"two"))  # type: ignore[arg-type]  # as above
        assert [(await store.get(key)).body for key in ("l", "m")] == [b"one", b"two"]
