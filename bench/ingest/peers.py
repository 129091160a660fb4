"""Prometheus and VictoriaMetrics from a distribution's packages, receiving the same samples by remote write.

They do other work: they index and compress samples on one machine's disk, and acknowledge before a sync. A collector
makes each batch durable in an object store, exactly once, and leaves indexing to jobs. The figures stand side by side
so that the price of either is known.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pyarrow as pa

from bench.frames.hosts import traces
from bench.objects.server import _free_port

PROGRAMS = ("prometheus", "victoria-metrics")


def find(program: str, folder: Path | None) -> Path | None:
    """Where the program is: in the folder given, or where the shell would find it."""
    if folder is not None and (folder / program).is_file():
        return folder / program
    found = shutil.which(program)
    return None if found is None else Path(found)


@contextmanager
def running(program: str, binary: Path, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    port = _free_port()
    data = folder / program
    data.mkdir()
    if program == "prometheus":
        config = folder / "prometheus.yml"
        config.write_text("global: {scrape_interval: 1h}\n")
        options = [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}"]
        options.append("--web.enable-remote-write-receiver")
    else:
        options = [f"-storageDataPath={data}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=100y"]
    process = subprocess.Popen([str(binary), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(200):
            try:
                httpx.get(f"{url}/-/ready" if program == "prometheus" else f"{url}/health").raise_for_status()
                break
            except (httpx.TransportError, httpx.HTTPStatusError):
                time.sleep(0.1)
        yield f"{url}/api/v1/write", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def write_requests(scrapes: int, hosts: int) -> list[bytes]:
    """One request of remote write per host: the samples of a batch of ours, in protocol buffers and snappy."""
    times, found = traces(scrapes)
    # Recent times: both refuse what is far in the past or in the future.
    shift = time.time_ns() - int(times[-1])
    stamps = ((times + shift) // 1_000_000).tolist()
    bodies = []
    for host in range(hosts):
        series = b"".join(
            _field(1, _series({"__name__": trace.name, "host": f"h{host}", **trace.labels}, stamps, trace.values))
            for trace in found
        )
        bodies.append(bytes(pa.Codec("snappy").compress(series, asbytes=True)))
    return bodies


def _series(labels: dict[str, str], stamps: list[int], values: Any) -> bytes:
    pairs = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in sorted(labels.items())
    )
    numbers = np.asarray(values, np.float64)
    samples = b"".join(
        _field(2, b"\x09" + number.tobytes() + b"\x10" + _varint(stamp))
        for stamp, number in zip(stamps, numbers, strict=True)
    )
    return pairs + samples


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


async def measure(
    program: str, binary: Path, folder: Path, *, scrapes: int, count: int, senders: int
) -> dict[str, Any]:
    """Requests and samples per second, CPU per request, bytes on the wire and on disk per sample."""
    bodies = write_requests(scrapes, count)
    samples = scrapes * 91 * count
    headers = {"content-encoding": "snappy", "x-prometheus-remote-write-version": "0.1.0"}
    took: list[float] = []
    with running(program, binary, folder) as (url, process):
        waiting = iter(bodies)
        cpu = sum(process.cpu_times()[:2])
        began = time.perf_counter()

        async def sender() -> None:
            limits = httpx.Limits(max_connections=1)
            async with httpx.AsyncClient(limits=limits, timeout=60) as http:
                for body in waiting:
                    since = time.perf_counter()
                    answer = await http.post(url, content=body, headers=headers)
                    if answer.status_code not in (200, 204):
                        raise RuntimeError(f"{program}: {answer.status_code} {answer.text[:200]}")
                    took.append(time.perf_counter() - since)

        await asyncio.gather(*(sender() for _ in range(senders)))
        seconds = time.perf_counter() - began
        cpu = sum(process.cpu_times()[:2]) - cpu
    stored = sum(path.stat().st_size for path in (folder / program).rglob("*") if path.is_file())
    return {
        "batches_per_second": round(count / seconds, 1),
        "samples_per_second": round(samples / seconds),
        "p50_ms": round(float(np.percentile(took, 50)) * 1000, 2),
        "p99_ms": round(float(np.percentile(took, 99)) * 1000, 2),
        "cpu_us_per_batch": round(cpu / count * 1e6),
        "wire_bytes_per_sample": round(sum(map(len, bodies)) / samples, 2),
        "disk_bytes_per_sample_after_stop": round(stored / samples, 2),
    }
