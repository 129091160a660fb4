"""Log lines leave by a thread: a pipe that nobody reads holds up nobody who answers requests.

Lines wait in memory, up to so many. What comes above that is dropped and counted, and the count is a line of its own
before the next one. Where the stream has a descriptor, bytes go straight to it: a thread that hangs in a write must not
hold the lock of the stream, which the interpreter takes when it ends.
"""

import logging
import os
import select
import threading
from collections import deque
from contextlib import suppress
from io import UnsupportedOperation
from typing import TextIO

MOST_LINES = 1_000
FLUSH_S = 2.0
"""How long the end waits for what is left."""


class Outlet(logging.Handler):
    def __init__(self, stream: TextIO, *, most: int = MOST_LINES) -> None:
        super().__init__()
        self._stream = stream
        self._most = most
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._ending = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="holdfast-logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001  # as every handler: a line that cannot be made fails nobody
            self.handleError(record)
            return
        with self._news:
            if len(self._waiting) >= self._most:
                self._dropped += 1
                return
            self._tell_dropped()
            self._waiting.append(line)
            self._news.notify()

    def close(self) -> None:
        """Write what is left, as far as somebody takes it in time."""
        with self._news:
            if self._ending:
                return
            self._tell_dropped()
            self._ending = True
            self._news.notify()
        self._thread.join(FLUSH_S)
        super().close()

    def _tell_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            about = {"name": "holdfast.server.logs", "levelno": logging.WARNING, "levelname": "WARNING"}
            said = {"msg": "%d lines were dropped: nobody took them in time", "args": (dropped,), "dropped": dropped}
            self._waiting.append(self.format(logging.makeLogRecord({**about, **said})))

    def _write_all(self) -> None:
        while True:
            with self._news:
                while not self._waiting and not self._ending:
                    self._news.wait()
                if not self._waiting:
                    return
                line = self._waiting.popleft()
            with suppress(OSError, ValueError):  # nobody listens any more, or the stream is closed
                self._write(line + "\n")

    def _write(self, text: str) -> None:
        try:
            descriptor = self._stream.fileno()
        except UnsupportedOperation:
            self._stream.write(text)
            return
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
