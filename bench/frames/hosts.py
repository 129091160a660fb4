"""What a busy host reports: the metrics that psutil reads, walking as such metrics do, drawn from a seed.

Every value has the form that psutil gives it: counts and sizes are whole numbers, processor times have two decimals,
percentages one, load averages are multiples of 1/2048, shares of memory have all the digits of a division. Fewer series
stand still than on a real host, where most do: this is the harder case.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.telemetry.records import Counter, Gauge

PAGE = 4096
MEMORY = 16 << 30
INTERVAL_NS = 10_000_000_000
BEGIN_NS = 1_760_000_000_123_456_789
JITTER_NS = 2_000_000
"""A scrape is up to this late; all its samples have the same time."""


@dataclass(frozen=True)
class Trace:
    """One metric over all scrapes."""

    name: str
    labels: dict[str, str]
    counter: bool
    values: npt.NDArray[np.float64] | npt.NDArray[np.int64]


class _Host:
    def __init__(self, scrapes: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._scrapes = scrapes
        self.traces: list[Trace] = []

    def times(self) -> npt.NDArray[np.int64]:
        jitter = self._rng.integers(0, JITTER_NS, self._scrapes)
        times: npt.NDArray[np.int64] = BEGIN_NS + np.arange(self._scrapes) * INTERVAL_NS + jitter
        return times

    def seconds(self, name: str, rate: float, **labels: str) -> None:
        """Processor time: hundredths of a second, as the kernel counts."""
        ticks = self._rng.poisson(rate * 1000, self._scrapes).cumsum() + self._rng.integers(10**5, 10**7)
        self.traces.append(Trace(name, labels, True, ticks / 100))

    def count(self, name: str, rate: float, unit: int = 1, **labels: str) -> None:
        """A count that grows in bursts."""
        steps = self._rng.poisson(rate * self._rng.gamma(2.0, 0.5, self._scrapes))
        self.traces.append(Trace(name, labels, True, (steps.cumsum() + self._rng.integers(10**6, 10**9)) * unit))

    def still(self, name: str, value: int, *, counter: bool = False, **labels: str) -> None:
        self.traces.append(Trace(name, labels, counter, np.full(self._scrapes, value)))

    def pages(self, name: str, pages: int, step: float, **labels: str) -> npt.NDArray[np.int64]:
        walk = self._rng.normal(0, step, self._scrapes).cumsum().astype(np.int64) + pages
        sizes: npt.NDArray[np.int64] = np.maximum(walk, 1) * PAGE
        self.traces.append(Trace(name, labels, False, sizes))
        return sizes

    def gauge(self, name: str, values: npt.NDArray[np.float64], **labels: str) -> None:
        self.traces.append(Trace(name, labels, False, values))

    def percent(self, name: str, middle: float, **labels: str) -> None:
        self.gauge(name, np.clip(self._rng.normal(middle, 8, self._scrapes), 0, 100).round(1), **labels)

    def load(self, name: str, window: int) -> None:
        noise = self._rng.exponential(1.2, self._scrapes + window)
        smooth = np.convolve(noise, np.ones(window) / window, "valid")[: self._scrapes]
        self.gauge(name, np.floor(smooth * 2048) / 2048)


def traces(scrapes: int, seed: int = 7) -> tuple[npt.NDArray[np.int64], list[Trace]]:
    """When the host was read, and about a hundred metrics."""
    host = _Host(scrapes, seed)
    times = host.times()
    for cpu in range(4):
        for mode, rate in (("user", 0.31), ("system", 0.07), ("idle", 0.59), ("iowait", 0.01), ("softirq", 0.005)):
            host.seconds("node_cpu_seconds_total", rate, cpu=str(cpu), mode=mode)
        host.percent("node_cpu_percent", 40, cpu=str(cpu))
    host.still("node_memory_MemTotal_bytes", MEMORY)
    for what in ("MemAvailable", "MemFree", "Cached", "Buffers", "Active", "Inactive"):
        host.pages(f"node_memory_{what}_bytes", 1_000_000, 400)
    for name, window in (("node_load1", 6), ("node_load5", 30), ("node_load15", 90)):
        host.load(name, window)
    for disk in ("nvme0n1", "nvme1n1"):
        for way in ("read", "write"):
            host.count(f"node_disk_{way}s_completed_total", 350, device=disk)
            host.count(f"node_disk_{way}_bytes_total", 9000, 512, device=disk)
            host.count(f"node_disk_{way}_time_ms_total", 180, device=disk)
        host.count("node_disk_busy_time_ms_total", 240, device=disk)
    for nic in ("eth0", "eth1"):
        for way in ("receive", "transmit"):
            host.count(f"node_network_{way}_bytes_total", 2_500_000, device=nic)
            host.count(f"node_network_{way}_packets_total", 2_200, device=nic)
            host.still(f"node_network_{way}_errs_total", 0, counter=True, device=nic)
    for mount in ("/", "/var"):
        host.still("node_filesystem_size_bytes", 512 << 30, mountpoint=mount)
        host.pages("node_filesystem_avail_bytes", 60_000_000, 2500, mountpoint=mount)
    for name, rate in (("node_context_switches_total", 90_000), ("node_intr_total", 41_000), ("node_forks_total", 12)):
        host.count(name, rate)
    for pid in range(8):
        labels = {"pid": str(1000 + 37 * pid), "comm": f"worker-{pid}"}
        host.seconds("process_cpu_seconds_total", 0.04 * (pid + 1), **labels)
        rss = host.pages("process_resident_memory_bytes", 40_000, 60, **labels)
        host.gauge("process_memory_percent", rss / MEMORY * 100, **labels)
    return times, host.traces


def records(scrapes: int, seed: int = 7) -> list[Gauge | Counter]:
    """The samples in the order in which an agent sends them: scrape by scrape."""
    times, metrics = traces(scrapes, seed)
    columns = [trace.values.tolist() for trace in metrics]
    return [
        (Counter if trace.counter else Gauge)(trace.name, column[number], time_ns, trace.labels)
        for number, time_ns in enumerate(times.tolist())
        for trace, column in zip(metrics, columns, strict=True)
    ]
