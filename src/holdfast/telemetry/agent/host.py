"""Measure the host. Values come from psutil, except those of processes, which are read from ``/proc``: psutil takes
long process names from command lines, which may hold secrets and are never read here.

``docs/operate/agents.md`` lists every metric. A value that cannot be read is left out of the round.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import HoldfastError
from holdfast.telemetry.records import Counter, Gauge, Record

try:
    import psutil
except ImportError as error:
    raise HoldfastError(
        "an agent needs psutil, which is not installed", remedy="pip install 'holdfast[agent]'"
    ) from error

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
MOST_PROCESSES = 8


@dataclass(frozen=True, slots=True)
class Process:
    """The fields of ``/proc/PID/stat`` that are used."""

    pid: int
    comm: str
    cpu_ticks: int
    start_ticks: int
    resident_pages: int

    @classmethod
    def parse(cls, line: str) -> "Process | None":
        """The name is in brackets and may contain brackets and spaces, so it ends at the last bracket."""
        opening, closing = line.find("("), line.rfind(")")
        rest = line[closing + 2 :].split()
        if opening < 0 or closing < 0 or len(rest) < 22:
            return None
        return cls(
            int(line[:opening]),
            line[opening + 1 : closing],
            int(rest[11]) + int(rest[12]),
            int(rest[19]),
            int(rest[21]),
        )


class HostMeter:
    """Measures the host. Keeps the CPU time of every process from one round to the next."""

    def __init__(self, queue: Path, *, processes: int = MOST_PROCESSES, proc: Path = Path("/proc")) -> None:
        self._queue = queue
        self._most = min(processes, MOST_PROCESSES)
        self._proc = proc
        self._self = psutil.Process()
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._before: dict[tuple[int, int], int] = {}

    def measure(self, now_ns: int) -> list[Record]:
        """One round of measurements. Blocks for some milliseconds."""
        records: list[Record] = [Gauge("lmagent_up", 1, now_ns)]
        for part in (self._cpu, self._memory, self._load, self._disk, self._network, self._own, self._processes):
            try:
                records += part(now_ns)
            except (OSError, psutil.Error):
                continue  # a container may hide parts of the host; the other values are sent
        return records

    def _cpu(self, now_ns: int) -> Iterator[Record]:
        total = psutil.cpu_times()
        for mode in MODES:
            if hasattr(total, mode):
                yield Counter("lightmetrics_host_cpu_seconds_total", getattr(total, mode), now_ns, {"mode": mode})
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            for mode in MODES:
                if hasattr(times, mode):
                    labels = {"cpu": str(number), "mode": mode}
                    yield Counter("node_cpu_seconds_total", getattr(times, mode), now_ns, labels)

    def _memory(self, now_ns: int) -> Iterator[Record]:
        memory = psutil.virtual_memory()
        yield Gauge("node_memory_MemTotal_bytes", memory.total, now_ns)
        yield Gauge("node_memory_MemAvailable_bytes", memory.available, now_ns)

    def _load(self, now_ns: int) -> Iterator[Record]:
        for minutes, load in zip((1, 5, 15), psutil.getloadavg(), strict=True):
            yield Gauge(f"node_load{minutes}", load, now_ns)

    def _disk(self, now_ns: int) -> Iterator[Record]:
        found = os.statvfs(self._queue)
        yield Gauge("lmagent_queue_filesystem_size_bytes", found.f_blocks * found.f_frsize, now_ns)
        yield Gauge("lmagent_queue_filesystem_avail_bytes", found.f_bavail * found.f_frsize, now_ns)

    def _network(self, now_ns: int) -> Iterator[Record]:
        for device, counts in sorted(psutil.net_io_counters(pernic=True).items()):
            labels = {"device": device}
            yield Counter("node_network_receive_bytes_total", counts.bytes_recv, now_ns, labels)
            yield Counter("node_network_transmit_bytes_total", counts.bytes_sent, now_ns, labels)

    def _own(self, now_ns: int) -> Iterator[Record]:
        times = self._self.cpu_times()
        yield Counter("lmagent_process_cpu_seconds_total", times.user + times.system, now_ns)
        yield Gauge("lmagent_process_resident_memory_bytes", self._self.memory_info().rss, now_ns)

    def _processes(self, now_ns: int) -> Iterator[Record]:
        """The processes with the most CPU time since the last round; among idle ones those with the most memory."""
        if not self._most:
            return
        found = list(self._all_processes())
        before, self._before = self._before, {(each.pid, each.start_ticks): each.cpu_ticks for each in found}
        found.sort(
            key=lambda each: (before.get((each.pid, each.start_ticks), 0) - each.cpu_ticks, -each.resident_pages)
        )
        for each in found[: self._most]:
            labels = {
                "pid": str(each.pid),
                "start_time": f"{each.start_ticks / self._ticks:.2f}",
                "comm": each.comm.encode("utf-8", "replace").decode(),
            }
            yield Counter("lightmetrics_process_cpu_seconds_total", each.cpu_ticks / self._ticks, now_ns, labels)
            yield Gauge("lightmetrics_process_resident_memory_bytes", each.resident_pages * self._page, now_ns, labels)

    def _all_processes(self) -> Iterator[Process]:
        for name in os.listdir(self._proc):
            if not name.isdecimal():
                continue
            try:
                text = (self._proc / name / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # the process has ended
            process = Process.parse(text)
            if process is not None:
                yield process
