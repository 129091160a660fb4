"""The two sides of a comparison: a collector in a process of its own, and bare writes of the same two objects."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import obstore
import psutil
from obstore.store import LocalStore, S3Store

from bench.ingest.batches import Batches, keys
from bench.ingest.sender import request
from bench.objects.plain import write_durably
from bench.objects.server import BUCKET, ROOT, s3_server
from holdfast.base.ids import Ambient
from holdfast.server.tokens import add_token

KEYS = {"access_key_id": "bench", "secret_access_key": "benchbench", "region": "us-east-1"}
FAR_MS = 30
MANIFEST_BYTES = 620
"""About what an accepted manifest takes."""


class Collector:
    """A running collector, seen from outside."""

    def __init__(self, process: "subprocess.Popen[str]", token: str) -> None:
        if process.stdout is None:
            raise RuntimeError("the collector has no output")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the collector ended with code {process.wait()}")
        about = json.loads(line)
        self.url, self.private = about["ingest"], about["private"]
        self.token = token
        self._process = psutil.Process(process.pid)

    def cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def resident_bytes(self) -> int:
        return int(self._process.memory_info().rss)

    async def puts(self) -> int:
        """To the store, since it started."""
        async with httpx.AsyncClient() as http:
            page = (await http.get(f"{self.private}/metrics")).text
        lines = [line for line in page.splitlines() if line.startswith("holdfast_store_requests_total{")]
        return int(sum(float(line.split()[-1]) for line in lines if 'verb="put"' in line))

    def requests(self, batches: Batches, number: int) -> list[bytes]:
        return [request(batches.make(), self.token) for _ in range(number)]


class Relay:
    """The least that can stand between senders and a store (``bench.ingest.relay``)."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        if process.stdout is None:
            raise RuntimeError("the relay has no output")
        self.url = json.loads(process.stdout.readline())["url"]


@contextmanager
def relay(place: str) -> Iterator[Relay]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.ingest.relay", place], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Relay(process)
    finally:
        process.kill()
        process.communicate()


OLD = {"HOLDFAST_INGEST__BACKFILL": "true"}
"""The batches are the same in every run, so their records become too old."""


@contextmanager
def collector(store_uri: str, folder: Path, environ: dict[str, str]) -> Iterator[Collector]:
    _, token = add_token(folder / "tokens.toml", ("*",), Ambient.system())
    limits = {"HOLDFAST_INGEST__REQUESTS_PER_S": "1e9"}
    command = [sys.executable, "-m", "holdfast", "collector", "--store", store_uri, "--json"]
    command += ["--tokens", str(folder / "tokens.toml"), "--listen", "127.0.0.1:0", "--private", "127.0.0.1:0"]
    process = subprocess.Popen(
        command,
        env={**os.environ, **environ, **limits, "HOLDFAST_INGEST__CONCURRENCY": "1000", **OLD},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Collector(process, token)
    finally:
        process.kill()
        process.communicate()


Put = Callable[[str, bytes], Awaitable[Any]]
"""Creates one object, as durably as this store can."""


Writes = list[tuple[str, str, bytes]]
"""Of each batch the two keys that a collector would write, and its bytes."""


def writes(batches: Batches, number: int) -> Writes:
    frames = [batches.make() for _ in range(number)]
    return [(*keys(frame), frame) for frame in frames]


async def floor(put: Put, these: Writes, writers: int) -> None:
    """The same two PUTs: the bytes, then a small object. Nothing is received, looked into or hashed."""
    waiting = iter(these)
    small = b"0" * MANIFEST_BYTES

    async def writer() -> None:
        for blob, manifest, body in waiting:
            await put(blob, body)
            await put(manifest, small)

    await asyncio.gather(*(writer() for _ in range(writers)))


def bare_store(address: str, prefix: str) -> S3Store:
    return S3Store(
        BUCKET,
        prefix=prefix,
        access_key_id=KEYS["access_key_id"],
        secret_access_key=KEYS["secret_access_key"],
        region=KEYS["region"],
        endpoint=address,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def creates(address: str, prefix: str) -> Put:
    """PUTs to an S3 server."""
    store = bare_store(address, prefix)

    def create(key: str, body: bytes) -> Awaitable[Any]:
        return obstore.put_async(store, key, body, mode="create", use_multipart=False)

    return create


@contextmanager
def durable_files(folder: Path) -> Iterator[Put]:
    """Plain files that are as durable as those of a local store, written by threads that do nothing else."""
    with ThreadPoolExecutor(64) as threads:

        def durable(key: str, body: bytes) -> Awaitable[Any]:
            return asyncio.get_running_loop().run_in_executor(threads, write_durably, folder / key, body)

        yield durable


@contextmanager
def _server(store: str, folder: Path) -> Iterator[str]:
    if store == "s3":
        with s3_server(folder) as address:
            yield address
        return
    with s3_server(folder, "bench.ontology_write.counted") as address:
        httpx.put(f"{address}/-/delay/{FAR_MS}").raise_for_status()
        yield address


class Sides(NamedTuple):
    """Each with a place of its own on the same disk or the same server."""

    ours: Collector
    bare: Put
    relay: Relay
    unsynced: Put | None = None
    """On a disk: a store that forces nothing to it."""


@contextmanager
def sides(store: str, folder: Path) -> Iterator[Sides]:
    if store == "file":
        plain = LocalStore(str(folder / "unsynced"), mkdir=True)

        def unsynced(key: str, body: bytes) -> Awaitable[Any]:
            return obstore.put_async(plain, key, body, mode="create", use_multipart=False)

        with (
            collector(f"file:{folder / 'ours'}", folder, {}) as ours,
            durable_files(folder / "bare") as durable,
            relay(str(folder / "relay")) as between,
        ):
            yield Sides(ours, durable, between, unsynced)
        return
    with _server(store, folder) as address:
        environ = {f"HOLDFAST_S3__{name.upper()}": value for name, value in KEYS.items()}
        with collector(f"s3://{BUCKET}/ours?endpoint={address}", folder, environ) as ours, relay(address) as between:
            yield Sides(ours, creates(address, "bare"), between)
