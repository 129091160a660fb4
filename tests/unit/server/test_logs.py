"""Logs of a collector: nobody without a token gets to fill a disk with them."""

import io
import json
import logging
import os
import threading
import time
from typing import Any

import pytest

from holdfast.server import outlet
from holdfast.server.logs import REFUSALS_PER_S, logging_to


def test_complaints_of_the_http_server_are_few_a_second_and_ours_are_all_there() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        for number in range(20 * REFUSALS_PER_S):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
            logging.getLogger("holdfast.ingest").warning("line %d", number)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [line for line in lines if line["logger"] == "uvicorn.error"]
    seconds = {line["time"][:19] for line in lines}
    assert 0 < len(told) <= REFUSALS_PER_S * len(seconds)
    assert len(lines) - len(told) == 20 * REFUSALS_PER_S


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_what_was_dropped_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlet, "FLUSH_S", 0.1)
    log, text = logging.getLogger("holdfast.ingest"), "x" * 1_000
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as reading, os.fdopen(writer, "w", encoding="utf-8") as stream:
        began = time.monotonic()
        with logging_to(stream):
            for _ in range(3 * outlet.MOST_LINES):  # a pipe holds some dozens
                log.warning(text)
        assert time.monotonic() - began < 30
        lines: list[dict[str, Any]] = []
        while not lines or "dropped" not in lines[-1]:
            lines.append(json.loads(reading.readline()))
        while "holdfast-logs" in {each.name for each in threading.enumerate()}:
            time.sleep(0.01)
    told = lines.pop()
    assert (told["logger"], told["level"]) == ("holdfast.server.logs", "warning")
    assert {line["message"] for line in lines} == {text}
    assert len(lines) + told["dropped"] == 3 * outlet.MOST_LINES
    assert f"{told['dropped']} lines were dropped" in told["message"]


def test_who_reads_again_gets_the_count_before_the_next_line() -> None:
    log = logging.getLogger("holdfast.ingest")
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as reading:
        with os.fdopen(writer, "w", encoding="utf-8") as stream, logging_to(stream):
            for _ in range(3 * outlet.MOST_LINES):
                log.warning("x" * 1_000)
            while b"dropped" not in reading.readline():
                log.warning("and on")
            assert json.loads(reading.readline())["message"] == "and on"
            rest = threading.Thread(target=reading.read)
            rest.start()
        rest.join()


def test_lines_to_a_pipe_whose_reader_is_gone_are_lost_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream, logging_to(stream):
        logging.getLogger("holdfast.ingest").warning("nobody hears")
    assert stream.closed


def test_what_the_loop_complains_of_is_json_too() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        logging.getLogger("asyncio").error("a task failed")
    assert json.loads(stream.getvalue())["message"] == "a task failed"
