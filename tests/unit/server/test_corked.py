"""Head and body of an answer in one write; nothing kept back for longer than a turn of the loop."""

import asyncio

from holdfast.server.corked import MOST, Corked


class Recorder(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said.append(bytes(data))

    def close(self) -> None:
        self.said.append("close")

    def is_closing(self) -> bool:
        return "close" in self.said


async def test_a_small_write_waits_for_the_next_one() -> None:
    below = Recorder()
    corked = Corked(below, asyncio.get_running_loop())
    corked.write(b"head")
    corked.write(b"")
    assert below.said == []
    corked.write(b"body")
    assert below.said == [b"headbody"]
    corked.write(b"alone")
    await asyncio.sleep(0)
    assert below.said == [b"headbody", b"alone"]


async def test_no_more_than_one_write_waits_so_that_writers_are_held_up() -> None:
    below = Recorder()
    corked = Corked(below, asyncio.get_running_loop())
    for _ in range(10):
        corked.write(b"x" * 100)
    assert below.said == [b"x" * 200] * 5
    corked.write(b"y" * (MOST + 1))
    assert below.said[-1] == b"y" * (MOST + 1)


async def test_what_waits_goes_out_before_the_end() -> None:
    below = Recorder()
    corked = Corked(below, asyncio.get_running_loop())
    corked.write(b"last words")
    corked.close()
    assert below.said == [b"last words", "close"]
    assert corked.is_closing()
    await asyncio.sleep(0)
    assert below.said == [b"last words", "close"]
