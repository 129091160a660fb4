"""Processes that share a cache folder, killed at any moment: right bytes, a bound that holds, nothing left behind."""

import fcntl
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.objects.cache.space import charged
from tests.integration.cache_reader import KEYS, MAX_BYTES, body_of, cache_in, filled_store

ROOT = Path(__file__).parents[2]
KILLS = 3


class Reader:
    def __init__(self, folder: Path, seed: int) -> None:
        copies = folder.with_name("copies")  # of objects that are read while its process is killed
        copies.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.cache_reader", str(folder), str(seed)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(copies)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def progress(self, lines: int) -> list[int]:
        """Wait for so many lines; hits and evictions as the last one says."""
        assert self._process.stdout is not None
        last = ""
        for _ in range(lines):
            last = self._process.stdout.readline()
            assert last, self.end()
        return [int(word) for word in last.split()]

    def end(self) -> str:
        self._process.send_signal(signal.SIGKILL)
        return self._process.communicate()[1]


def taken(folder: Path) -> int:
    """What all files take at one moment: under the ledger's lock none is added. A file with two names counts once."""
    with next(folder.rglob("ledger")).open() as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        sizes: dict[int, int] = {}
        for shard in sorted(folder.rglob("*/"), key=lambda path: path.name != "tmp"):
            for path in shard.iterdir():
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # evictions need the lock, but drops and finished writes do not
                if path.is_file() and path.name != "ledger":
                    sizes[status.st_ino] = charged(status.st_size)
        assert sum(sizes.values()) <= int(ledger.read())
        return sum(sizes.values())


async def test_killed_processes_share_a_cache(tmp_path: Path) -> None:
    rng = random.Random(3)
    folder = tmp_path / "cache"
    readers = [Reader(folder, seed) for seed in range(3)]
    hits = evictions = 0
    try:
        for kill in range(KILLS):
            for reader in readers:
                reader.progress(1)
                assert taken(folder) <= MAX_BYTES
            victim = readers.pop(rng.randrange(len(readers)))
            some_hits, some_evictions = victim.progress(rng.randrange(1, 12))
            hits, evictions = hits + some_hits, evictions + some_evictions
            assert victim.end() == ""
            readers.append(Reader(folder, 100 + kill))
    finally:
        errors = [reader.end() for reader in readers]
    assert errors == [""] * len(readers)
    assert hits > 0
    assert evictions > 0

    cache = cache_in(folder, await filled_store())
    next(folder.rglob("ledger")).write_text("unknown")  # so that the next write looks through the whole folder
    for key in KEYS:
        assert (await cache.get(key)).body == body_of(key)
    assert taken(folder) <= MAX_BYTES
    assert cache.stats.torn == cache.stats.failures == 0
    assert list((next(folder.rglob("tmp"))).iterdir()) == []
