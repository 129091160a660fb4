"""Logs as JSON, a line each, and refusals noted without letting a bad sender fill the disk, or whoever does not read
them stop a collector (``outlet``)."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.base.clock import Clock, iso
from holdfast.base.telemetry import logger
from holdfast.server.outlet import Outlet

if TYPE_CHECKING:
    from starlette.requests import Request

    from holdfast.server.faults import Failure

REFUSALS_PER_S = 20
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_log = logger("server.request")


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message``, what was given as ``extra``, and ``traceback`` of an exception."""

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
        return json.dumps(line, default=str)  # ASCII alone: a log may be read on a terminal


class Sparing(logging.Filter):
    """Of what the HTTP server says so many lines a second: anybody can make it complain, with no token at all."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._noted = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("uvicorn"):
            return True
        if int(record.created) != self._second:
            self._second, self._noted = int(record.created), 0
        self._noted += 1
        return self._noted <= REFUSALS_PER_S


@contextmanager
def logging_to(stream: TextIO, level: int = logging.INFO) -> Iterator[None]:
    """Send the logs of this process there until the block ends. For programs; a library never calls it."""
    handler = Outlet(stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(Sparing())
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
        handler.close()


class Refusals:
    """One line per refused request, up to so many a second; the rest are counted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._noted = 0
        self._passed_over = 0

    def note(self, request: "Request", failure: "Failure", error: Exception) -> None:
        second = self._clock.monotonic_ns() // 1_000_000_000
        if second != self._second:
            self._second, self._noted = second, 0
        if self._noted >= REFUSALS_PER_S:
            self._passed_over += 1
            return
        self._noted += 1
        unexpected = failure.status == 500
        details: dict[str, Any] = {
            "method": request.method,
            "path": request.url.path,
            "peer": request.client.host if request.client else None,
            "status": failure.status,
            "reason": failure.reason,
            "passed_over": self._passed_over,
        }
        self._passed_over = 0
        level = logging.ERROR if unexpected else logging.INFO
        _log.log(level, "refused: %s", error, extra=details, exc_info=error if unexpected else None)
