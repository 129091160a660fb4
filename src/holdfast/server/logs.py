"""Logs as JSON lines.

Neither clients nor a slow reader of the log can stop a collector: lines that clients cause are limited per second, and
a thread writes all lines. Up to ``QUEUE_LINES`` wait for it; more are dropped, and their number is logged before the
next line.
"""

import json
import logging
import os
import queue
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from logging.handlers import QueueHandler, QueueListener
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.base.clock import iso
from holdfast.base.telemetry import logger

if TYPE_CHECKING:
    from starlette.requests import Request

    from holdfast.server.errors import Failure

QUEUE_LINES = 1_000
FLUSH_S = 2.0
"""How long the process waits at its end until lines are written."""
PEER_LINES_PER_S = 20
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_refusals = logger("server.request")


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message``, the fields of ``extra``, and ``traceback`` of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": iso(int(record.created * 1_000_000_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # ASCII: a terminal may show it


class PeerRate(logging.Filter):
    """Limits the lines that peers can cause; ``suppressed`` of the next line counts those that were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._lines = 0
        self._suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("uvicorn", "asyncio", _refusals.name)):
            return True
        if int(record.created) != self._second:
            self._second, self._lines = int(record.created), 0
        self._lines += 1
        if self._lines > PEER_LINES_PER_S:
            self._suppressed += 1
            return False
        if self._suppressed:
            record.suppressed = self._suppressed
            self._suppressed = 0
        return True


class DroppingHandler(QueueHandler):
    """Never blocks. The queue itself is unbounded, so that the listener's sentinel can always be added."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(lines)
        self._lines = lines
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= QUEUE_LINES:
            self._dropped += 1
            return
        self.note_dropped()
        self._lines.put_nowait(record)

    def note_dropped(self) -> None:
        if self._dropped:
            text = "%d lines were dropped: the reader of the log was too slow"
            record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, (self._dropped,), None)
            record.dropped = self._dropped
            self._dropped = 0
            self._lines.put_nowait(self.prepare(record))


class DescriptorHandler(logging.Handler):
    """Writes lines to the descriptor of a stream, in the thread of the queue's listener. It holds no lock meanwhile,
    not even that of the stream: if the write blocks for ever, the interpreter must still be able to exit."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def createLock(self) -> None:  # noqa: N802  # the name is of the standard library
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # the reader has closed the pipe, or the stream is closed
            self._write(self.format(record) + "\n")

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


@contextmanager
def logging_to(stream: TextIO, level: int = logging.INFO) -> Iterator[None]:
    """Send the logs of this process there until the block ends. For programs; a library never calls it."""
    lines: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = DroppingHandler(lines)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(PeerRate())
    listener = QueueListener(lines, DescriptorHandler(stream))
    listener.start()
    loggers = {name: logging.getLogger(name) for name in ("holdfast", "uvicorn", "asyncio")}
    before = {name: (each.level, each.propagate) for name, each in loggers.items()}
    for name, each in loggers.items():
        each.addHandler(handler)
        each.setLevel(level if name == "holdfast" else max(level, logging.WARNING))
        each.propagate = False
    try:
        yield
    finally:
        for name, each in loggers.items():
            each.removeHandler(handler)
            each.setLevel(before[name][0])
            each.propagate = before[name][1]
        handler.note_dropped()
        stopping = threading.Thread(target=listener.stop, name="holdfast-logs", daemon=True)
        stopping.start()
        stopping.join(FLUSH_S)  # `stop` itself waits until every line is written, which may never happen
        handler.close()


def log_refusal(request: "Request", failure: "Failure", error: Exception) -> None:
    unexpected = failure.status == 500
    details = {
        "method": request.method,
        "path": request.url.path,
        "peer": request.client.host if request.client else None,
        "status": failure.status,
        "reason": failure.reason,
    }
    level = logging.ERROR if unexpected else logging.INFO
    _refusals.log(level, "refused: %s", error, extra=details, exc_info=error if unexpected else None)
