"""Logs of a collector: nobody without a token gets to fill a disk with them."""

import io
import json
import logging

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
