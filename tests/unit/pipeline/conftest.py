"""A port where nobody listens, and an hour to be merged."""

import asyncio
import socket

import pytest

from holdfast.objects.memory import Shelf
from tests.unit.pipeline.healthy import copied
from tests.unit.pipeline.merge_desk import Place, filled


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def merge_shelf() -> Shelf:
    place = Place()
    asyncio.run(filled(place.opened()))
    return place.shelf


@pytest.fixture
def place(merge_shelf: Shelf) -> Place:
    return Place(copied(merge_shelf))
