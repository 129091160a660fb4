"""Collector processes for tests, a sender that speaks raw HTTP, and a witness that reads only objects."""

import hashlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from holdfast.base.ids import Ambient
from holdfast.server.tokens import add_token
from tests.integration.run_places import Place

FOR_PEOPLE = ""
"""In the place of an option: without ``--json``."""


@dataclass(frozen=True)
class Running:
    """A collector that listens."""

    process: "subprocess.Popen[str]"
    ingest: str
    private: str
    about: dict[str, Any]

    @property
    def resident_bytes(self) -> int:
        size: int = psutil.Process(self.process.pid).memory_info().rss
        return size


def make_token(path: Path, *agents: str) -> str:
    return add_token(path, agents, Ambient.system())[1]


def begin(
    place: Place, tokens: Path, *options: str, files: int | None = None, **settings: object
) -> "subprocess.Popen[str]":
    """Start a collector process; ``await_start`` waits for it. ``settings`` are those of the section ``ingest``;
    ``files`` is how many it may have open."""
    asked = {"backfill": True, **settings}  # records of tests are dated 1970
    given = {f"HOLDFAST_INGEST__{name.upper()}": str(value) for name, value in asked.items()}
    limited = [] if files is None else ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files)]
    command = [*limited, sys.executable, "-m", "holdfast", "collector", "--store", place.uri]
    command += ["--tokens", str(tokens), *(() if FOR_PEOPLE in options else ("--json",))]
    return subprocess.Popen(
        [
            *command,
            "--listen",
            "127.0.0.1:0",
            "--private",
            "127.0.0.1:0",
            *(each for each in options if each != FOR_PEOPLE),
        ],
        env={**os.environ, **place.environ, **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_start(process: "subprocess.Popen[str]") -> Running:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the collector did not start: {process.communicate()[1]}")
    if not line.startswith("{"):  # for people
        ingest, private = re.findall(r"http://[\d.:]+", line)
        return Running(process, ingest, private, {})
    about = json.loads(line)
    return Running(process, about["ingest"], about["private"], about)


def end(process: "subprocess.Popen[str]", *, kill: bool = False) -> tuple[int, str]:
    """Its exit code and its log."""
    if kill:
        process.kill()
    else:
        process.terminate()
    log = process.communicate(timeout=60)[1]
    return process.returncode, log


@contextmanager
def collectors(
    place: Place, tokens: Path, *each: tuple[str, ...], files: int | None = None, **settings: object
) -> Iterator[list[Running]]:
    """So many collectors on one store, each with its options."""
    processes = [begin(place, tokens, *options, files=files, **settings) for options in each]
    try:
        yield [await_start(process) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                end(process, kill=True)
            elif process.stdout is not None and not process.stdout.closed:
                process.communicate()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    phrase: str = ""

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


def exchange(url: str, head: str, body: bytes = b"", *, finish: bool = False, timeout: float = 30) -> Answer | None:
    """Send these bytes, and read one answer; None if the connection ends without one."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=timeout) as connection:
        try:
            connection.sendall(head.encode("latin-1") + body)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # an answer may have come before everything was sent
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer | None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += (part := connection.recv(65_536))
        if not part:
            return None
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65_536)
    _, status, phrase = lines[0].split(" ", 2)
    return Answer(int(status), headers, body, phrase)


def request_head(token: str | None, size: int | None, **changed: str | None) -> str:
    """The head of a request as an agent sends it; a header that is None is left out."""
    headers: dict[str, str | None] = {
        "host": "collector",
        "authorization": None if token is None else f"Bearer {token}",
        "x-lightmetrics-agent": "web-1",
        "x-lightmetrics-seq-start": "0",
        "x-lightmetrics-seq-end": "0",
        "content-length": None if size is None else str(size),
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value is not None]
    return "POST /ingest/v1/batch HTTP/1.1\r\n" + "".join(lines) + "\r\n"


def sealed(frame: bytearray) -> bytes:
    """The frame with a checksum that is right, whatever was done to it."""
    frame[12:16] = struct.pack("<I", zlib.crc32(frame[16:], zlib.crc32(frame[:12])))
    return bytes(frame)


def witness(contents: dict[str, bytes]) -> dict[tuple[str, str, int, int], str]:
    """Every accepted identity with the hash of its bytes. Knows the specification alone, and none of our code.

    Raises if a manifest does not resolve to bytes with its hash, or stands under another batch's key.
    """
    found: dict[tuple[str, str, int, int], str] = {}
    for key, body in contents.items():
        if not key.startswith("accepted/v1/"):
            continue
        manifest = json.loads(body)
        identity = (manifest["agent_id"], manifest["boot_id"], manifest["seq_start"], manifest["seq_end"])
        agent, boot = identity[0].encode().hex(), identity[1].encode().hex()
        expected = f"accepted/v1/agent={agent}/boot={boot}/{identity[2]:020d}-{identity[3]:020d}.json"
        blob = contents[manifest["raw_blob_key"]]
        digest = hashlib.sha256(blob).hexdigest()
        right = key == expected and digest == manifest["frame_sha256"] and len(blob) == manifest["frame_bytes"]
        named = manifest["raw_blob_key"] == f"raw-blobs/v1/sha256/{digest[:2]}/{digest[2:4]}/{digest}.lmbatch"
        if not right or not named or identity in found or manifest["schema"] != "lightmetrics.accepted_batch.v1":
            raise AssertionError(f"{key}: {manifest} over {len(blob)} bytes with the hash {digest}")
        found[identity] = digest
    return found


def referred(contents: dict[str, bytes]) -> set[tuple[str, str, int, int]]:
    """Batches that are found by time: by a reference in the hour of their acceptance."""
    named = {json.loads(body)["accepted_manifest_key"] for key, body in contents.items() if "accepted-by-time/" in key}
    found = [json.loads(contents[key]) for key in named if key in contents]
    return {(each["agent_id"], each["boot_id"], each["seq_start"], each["seq_end"]) for each in found}


def families(contents: dict[str, bytes]) -> Counter[str]:
    return Counter(key.split("/")[0] for key in contents)
