"""Logs of a collector: a client without a token cannot fill the disk, and a slow reader cannot block it."""

import io
import json
import logging
import os
import threading
from collections.abc import Iterable

from holdfast.server import logs
from holdfast.server.logs import PEER_LINES_PER_S, logging_to


def test_lines_that_peers_cause_are_limited_per_second_and_others_are_not() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        for number in range(20 * PEER_LINES_PER_S):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
            logging.getLogger("holdfast.server.request").info("refused")
            logging.getLogger("holdfast.telemetry").warning("line %d", number)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    own = [line for line in lines if line["logger"] == "holdfast.telemetry"]
    seconds = {line["time"][:19] for line in lines}
    assert 0 < len(lines) - len(own) <= PEER_LINES_PER_S * len(seconds)
    assert len(own) == 20 * PEER_LINES_PER_S


def numbered(number: int) -> str:
    return f"{number} " + "x" * 1_000


def accounted(lines: Iterable[bytes], until: int) -> list[int]:
    """The counts that are reported, each where those lines would be, until so many lines were there or counted."""
    counts: list[int] = []
    number = 0
    for each in lines:
        line = json.loads(each)
        if "dropped" in line:
            assert (line["logger"], line["level"]) == ("holdfast.server.logs", "warning")
            assert f"{line['dropped']} lines were dropped: the reader of the log was too slow" in line["message"]
            counts.append(line["dropped"])
            number += line["dropped"]
        else:
            assert line["message"] == numbered(number)
            number += 1
        if number >= until:
            break
    assert number == until
    return counts


def test_the_number_of_dropped_lines_precedes_the_next_line() -> None:
    log, most = logging.getLogger("holdfast.telemetry"), 3 * logs.QUEUE_LINES
    reader, writer = os.pipe()
    counts: list[int] = []
    with os.fdopen(reader, "rb") as reading:
        rest = threading.Thread(target=lambda: counts.extend(accounted(reading, most + 500)))
        with os.fdopen(writer, "w", encoding="utf-8") as stream, logging_to(stream):
            for number in range(most):
                log.warning(numbered(number))
            rest.start()
            for number in range(most, most + 500):
                log.warning(numbered(number))
        rest.join()
    assert sum(counts) > 0


def test_lines_to_a_closed_pipe_are_lost_silently() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream, logging_to(stream):
        logging.getLogger("holdfast.telemetry").warning("not read")
    assert stream.closed
