"""What a cache did, and what went wrong inside it without troubling its callers."""

import threading
from dataclasses import dataclass, field


@dataclass
class CacheStats:
    """Running totals of one cache in one process. Workers count too, hence the lock."""

    hits: int = 0
    """Answered from disk."""
    misses: int = 0
    """Answered by the store."""
    shared: int = 0
    """Answered by a fetch that another caller had begun."""
    evictions: int = 0
    torn: int = 0
    """Cached files that were not what they said, and were removed."""
    skipped: int = 0
    """Objects not kept: larger than the bound, no room beside pinned ones, or another process was at the ledger."""
    failures: int = 0
    """Times that the disk refused; the caller was served by the store."""
    last_failure: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, name: str, number: int = 1) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + number)

    def failed(self, error: OSError) -> None:
        with self._lock:
            self.failures += 1
            self.last_failure = str(error)
