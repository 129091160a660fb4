"""What a process and its descendants use: the most memory at a time, looked at often, and processor time so far."""

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


def cpu_seconds(pid: int) -> float:
    """Of a process and all its descendants that are there."""
    total = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it has ended meanwhile
        total += times.user + times.system
    return total


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
