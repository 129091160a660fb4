"""The memory store: what is particular to it. What every store must do is in the laws."""

import asyncio
import threading

from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.store import CREATE, IfMatch, Lost, Mode, Written

LARGE = 1_000_000
"""Large enough that hashing it lets other threads run."""


def race(shelf: Shelf, key: str, modes: list[Mode]) -> list[Written | Lost]:
    """Clients in threads of their own, each with its own loop, write at once."""
    together = threading.Barrier(len(modes))
    outcomes: dict[int, Written | Lost] = {}

    def write(number: int, mode: Mode) -> None:
        body = b"%s by %d" % (type(mode).__name__.encode(), number) + bytes(LARGE)
        together.wait()
        outcomes[number] = asyncio.run(MemoryStore(shelf).put(key, body, mode))

    threads = [threading.Thread(target=write, args=each) for each in enumerate(modes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[number] for number in range(len(modes))]


def test_of_threads_that_write_one_key_one_wins() -> None:
    shelf = Shelf()
    for turn in range(20):
        created = race(shelf, f"race-{turn}", [CREATE, CREATE])
        assert sorted(type(outcome).__name__ for outcome in created) == ["Lost", "Written"]
        seen = IfMatch(shelf.objects[f"race-{turn}"].version)
        replaced = race(shelf, f"race-{turn}", [seen, seen, CREATE])
        assert [type(outcome).__name__ for outcome in replaced].count("Written") == 1
