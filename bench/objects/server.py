"""An S3 server of the benchmark's own: ministack, in a process of its own, on a free port of the loopback."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

BUCKET = "bench"
ROOT = Path(__file__).parents[2]
_TRIES = 200


@contextmanager
def s3_server(folder: Path, module: str = "ministack", buckets: Sequence[str] = (BUCKET,)) -> Iterator[str]:
    """The server's address; the buckets are there and empty. ``folder`` takes what the server leaves behind."""
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "SERVICES": "s3",
            "TMPDIR": str(folder),
            "LOG_LEVEL": "WARNING",
        },
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(address, process)
        for bucket in buckets:
            httpx.put(f"{address}/{bucket}").raise_for_status()
        yield address
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(address: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(_TRIES):
        if process.poll() is not None:
            raise RuntimeError(f"the S3 server ended with code {process.returncode}")
        try:
            httpx.get(address)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"no S3 server at {address}")
