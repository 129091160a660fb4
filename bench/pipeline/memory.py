"""The most memory that this process and its descendants have used at a time, looked at several times a second."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

EVERY_S = 0.05


@dataclass
class Peak:
    driver: int = 0
    jvm: int = 0
    worker: int = 0
    """Of the largest worker."""
    ended: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        me = psutil.Process(os.getpid())
        self.driver = max(self.driver, me.memory_info().rss)
        for child in me.children(recursive=True):
            try:
                size, name = child.memory_info().rss, child.name()
            except psutil.Error:
                continue  # it has ended meanwhile
            if name == "java":
                self.jvm = max(self.jvm, size)
            else:
                self.worker = max(self.worker, size)

    def mib(self) -> dict[str, int]:
        return {name: round(getattr(self, name) / 2**20) for name in ("driver", "jvm", "worker")}


@contextmanager
def watched() -> Iterator[Peak]:
    peak = Peak()

    def watch() -> None:
        while not peak.ended.wait(EVERY_S):
            peak.look()

    thread = threading.Thread(target=watch, daemon=True)
    peak.look()
    thread.start()
    try:
        yield peak
    finally:
        peak.ended.set()
        thread.join()
