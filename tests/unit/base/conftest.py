"""A file to force, and who has forced what."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import disk
from holdfast.base.ring import Ring
from tests.unit.base.forcing import forced


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"bytes")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have called ``os.fsync``."""
    names: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        names.append(threading.current_thread().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return names


@pytest.fixture
def has_ring(file: int) -> bool:
    """Whether there is a ring that answers here and now. Where a container does not allow it, or the kernel has left
    this thread alone, the same must hold of threads."""

    async def is_answered() -> bool:
        assert await forced(file) is None
        return disk._rings[asyncio.get_running_loop()] is not None and not Ring.deaf

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(is_answered())
    finally:
        loop.close()
