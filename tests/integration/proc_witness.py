"""What an agent measured, beside other readings, of ``/proc`` and of psutil: from objects, with none of our code.

    python -m tests.integration.proc_witness MINUTES      a real agent and a real collector for so long

A sample's value was read after the sample's time and before its batch was accepted. So a counter lies between the last
reading before the one and the first after the other, whatever the machine was busy with: that is exact, and one value
outside is a fault. Values that go up and down may leave that span between two readings; how often is reported.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from holdfast.base.clock import SystemClock
from tests.integration.collectors import collectors, make_token
from tests.integration.run_places import Place, folder
from tests.unit.telemetry.frame.plain_frames import read

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
EVERY_S = 0.2
SLACK = {"node_memory_MemAvailable_bytes": 0.01, "lmagent_queue_filesystem_avail_bytes": 0.01}
"""Of a value: how far it may leave the span of the readings around it before it counts as outside."""
ROUNDED = {
    **dict.fromkeys(("lightmetrics_host_cpu_seconds_total", "node_cpu_seconds_total"), 1.5 / TICKS),
    **dict.fromkeys(("lightmetrics_process_cpu_seconds_total", "lmagent_process_cpu_seconds_total"), 1.5 / TICKS),
    **dict.fromkeys(("node_load1", "node_load5", "node_load15"), 0.0051),
}
"""Loads have two decimals in ``/proc``. Idle time is a sum that the kernel adds up anew: it may step back by a tick. So
may the time of a process while a thread of it ends."""
UNSTEADY = ("idle", "iowait", "steal")
"""Modes of processors whose times Linux lets step back: outside is reported for them, and is no fault."""
Series = tuple[str, tuple[tuple[str, str], ...]]


def series(name: str, **labels: str) -> Series:
    return name, tuple(sorted(labels.items()))


def reading(queue: Path, agent: int) -> dict[Series, float]:
    """One look at everything that an agent measures."""
    found: dict[Series, float] = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu"):
            for mode, ticks in zip(MODES, numbers, strict=False):
                key = (
                    series("lightmetrics_host_cpu_seconds_total", mode=mode)
                    if name == "cpu"
                    else series("node_cpu_seconds_total", cpu=name[3:], mode=mode)
                )
                found[key] = int(ticks) / TICKS
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split()[:2]
        if name in ("MemTotal:", "MemAvailable:"):
            found[series(f"node_memory_{name[:-1]}_bytes")] = int(value) * 1024
    for minutes, load in zip((1, 5, 15), Path("/proc/loadavg").read_text().split(), strict=False):
        found[series(f"node_load{minutes}")] = float(load)
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        device, _, numbers_text = line.partition(":")
        counts = numbers_text.split()
        found[series("node_network_receive_bytes_total", device=device.strip())] = int(counts[0])
        found[series("node_network_transmit_bytes_total", device=device.strip())] = int(counts[8])
    disk = os.statvfs(queue)
    found[series("lmagent_queue_filesystem_size_bytes")] = disk.f_blocks * disk.f_frsize
    found[series("lmagent_queue_filesystem_avail_bytes")] = disk.f_bavail * disk.f_frsize
    for pid, comm, cpu, start, resident in processes():
        labels = {"pid": str(pid), "start_time": f"{start / TICKS:.2f}", "comm": comm}
        found[series("lightmetrics_process_cpu_seconds_total", **labels)] = cpu / TICKS
        found[series("lightmetrics_process_resident_memory_bytes", **labels)] = resident * PAGE
        if pid == agent:
            found[series("lmagent_process_cpu_seconds_total")] = cpu / TICKS
            # The kernel keeps two counts of resident pages, and this is the more exact one.
            with suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                found[series("lmagent_process_resident_memory_bytes")] = pages * PAGE
    return found


def processes() -> Iterator[tuple[int, str, int, int, int]]:
    for folder_of in Path("/proc").iterdir():
        if folder_of.name.isdecimal():
            try:
                text = (folder_of / "stat").read_text(errors="replace")
            except OSError:
                continue
            comm = text[text.index("(") + 1 : text.rindex(")")]
            rest = text[text.rindex(")") + 2 :].split()
            yield int(folder_of.name), comm, int(rest[11]) + int(rest[12]), int(rest[19]), int(rest[21])


def told_by_psutil(queue: Path, agent: int) -> dict[Series, float]:
    """The same, as psutil has it; of processes the agent alone."""
    found: dict[Series, float] = {}
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        for mode in MODES:
            found[series("node_cpu_seconds_total", cpu=str(number), mode=mode)] = getattr(times, mode)
    for mode in MODES:
        found[series("lightmetrics_host_cpu_seconds_total", mode=mode)] = getattr(psutil.cpu_times(), mode)
    memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(queue))
    found[series("node_memory_MemTotal_bytes")] = memory.total
    found[series("node_memory_MemAvailable_bytes")] = memory.available
    for minutes, load in zip((1, 5, 15), psutil.getloadavg(), strict=True):
        found[series(f"node_load{minutes}")] = load
    for device, counts in psutil.net_io_counters(pernic=True).items():
        found[series("node_network_receive_bytes_total", device=device)] = counts.bytes_recv
        found[series("node_network_transmit_bytes_total", device=device)] = counts.bytes_sent
    found[series("lmagent_queue_filesystem_avail_bytes")] = disk.free
    with suppress(psutil.Error):
        process = psutil.Process(agent)
        found[series("lmagent_process_cpu_seconds_total")] = sum(process.cpu_times()[:2])
        found[series("lmagent_process_resident_memory_bytes")] = process.memory_info().rss
    return found


Look = Callable[[Path, int], dict[Series, float]]
LOOKS: dict[str, Look] = {"proc": reading, "psutil": told_by_psutil}


@dataclass
class Witness:
    """Reads until its event is set."""

    queue: Path
    agent: int
    look: Look = reading
    times: list[int] = field(default_factory=list)
    readings: list[dict[Series, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = SystemClock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._look()
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        before = self._clock.wall_ns()
        found = self.look(self.queue, self.agent)
        # A reading takes time too: as a lower bound it counts from its end, as an upper one from its beginning.
        self.times.append(before)
        self.times.append(self._clock.wall_ns())
        self.readings.append(found)

    def around(self, from_ns: int, to_ns: int) -> list[dict[Series, float]]:
        """From the last reading that had ended by ``from_ns`` to the first that began at ``to_ns`` or later."""
        first = max(0, bisect_right(self.times[1::2], from_ns) - 1)
        last = bisect_left(self.times[0::2], to_ns)
        return self.readings[first : last + 1]


@dataclass
class Compared:
    values: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    """Series that no reading around the sample had: processes that lived between two."""
    faults: list[str] = field(default_factory=list)
    """Counters outside of their span."""


def samples(place: Place) -> Iterator[tuple[int, str, str, dict[str, str], int, float]]:
    """Every sample in the store: when its batch was accepted, kind, name, labels, time, value."""
    contents = place.contents()
    for key, body in contents.items():
        if key.startswith("accepted/v1/"):
            manifest = json.loads(body)
            for _, record in read(contents[manifest["raw_blob_key"]])["records"]:
                if record[0] in ("gauge", "counter"):
                    kind, name, labels, time_ns, value = record
                    if isinstance(value, str):
                        (value,) = struct.unpack("<d", bytes.fromhex(value))
                    yield manifest["accepted_at_unix_ns"], kind, name, labels, time_ns, value


def compare(place: Place, witness: Witness) -> Compared:
    result = Compared()
    for accepted_ns, kind, name, labels, time_ns, value in samples(place):
        key = series(name, **labels)
        if name.startswith("lmagent_") and not name.startswith(("lmagent_process", "lmagent_queue_filesystem")):
            continue  # of the agent's own state, which no other process can read
        around = witness.around(time_ns, accepted_ns)
        spans = [found[key] for found in around if key in found]
        if kind == "counter" and key not in around[0]:
            spans.insert(0, 0.0)  # a process that began after that reading
        if len(spans) < 2 or key not in around[-1]:
            result.unknown[name] += 1
            continue
        result.values[name] += 1
        room = SLACK.get(name, 0.0) * value + ROUNDED.get(name, 1e-6)
        if not min(spans) - room <= value <= max(spans) + room:
            result.outside[name] += 1
            if kind == "counter" and labels.get("mode") not in UNSTEADY:
                result.faults.append(f"{name} {labels}: {value} is not between {min(spans)} and {max(spans)}")
    return result


def watched(root: Path, seconds: float, **settings: object) -> tuple[Place, dict[str, Witness], dict[str, Any]]:
    """A real agent and a real collector, for so long, and what the agent cost."""
    place, token = folder(root / "store"), root / "token"
    token.write_text(make_token(root / "tokens.toml", "web-*"))
    with collectors(place, root / "tokens.toml", ()) as (running,):
        options = ["--collector", running.ingest, "--agent-id", "web-1", "--token-file", str(token)]
        (root / "queue").mkdir()
        agent = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "agent", *options, "--queue", str(root / "queue")],
            env={**os.environ, **{f"HOLDFAST_AGENT__{key.upper()}": str(value) for key, value in settings.items()}},
            stdout=subprocess.PIPE,
            text=True,
        )
        witnesses = {name: Witness(root / "queue", agent.pid, look) for name, look in LOOKS.items()}
        for each in witnesses.values():
            each.start()
        try:
            assert agent.stdout is not None
            agent.stdout.readline()
            threading.Event().wait(seconds)
        finally:
            agent.terminate()
            agent.communicate(timeout=60)
            for each in witnesses.values():
                each.stop()
    return place, witnesses, {**cost(witnesses["proc"]), "exit": agent.returncode}


def cost(witness: Witness) -> dict[str, Any]:
    resident = [
        found[key]
        for found in witness.readings
        if (key := series("lmagent_process_resident_memory_bytes")) in found and found[key]
    ]
    cpu = [found[key] for found in witness.readings if (key := series("lmagent_process_cpu_seconds_total")) in found]
    seconds = (witness.times[-1] - witness.times[0]) / 1e9
    half = cpu[len(cpu) // 2 :]
    steady = (half[-1] - half[0]) / (seconds * len(half) / len(witness.readings))
    return {
        "seconds": round(seconds, 1),
        "resident_mib_highest": round(max(resident) / 2**20, 1),
        "resident_mib_last": round(resident[-1] / 2**20, 1),
        "cpu_s": round(cpu[-1], 2),
        "cpu_share_second_half": round(steady, 5),
    }


def main(minutes: float, interval_ms: int) -> int:
    with tempfile.TemporaryDirectory() as root:
        place, witnesses, figures = watched(Path(root), 60 * minutes, interval_ms=interval_ms, batch_ms=0)
        compared = {name: compare(place, witness) for name, witness in witnesses.items()}
        numbers = sorted(
            seq
            for key, body in place.contents().items()
            if key.startswith("accepted/v1/")
            for seq in range(json.loads(body)["seq_start"], json.loads(body)["seq_end"] + 1)
        )
    figures |= {"numbers": len(numbers), "gaps": numbers != list(range(len(numbers)))}
    for name, found in compared.items():
        figures[name] = {
            "readings": len(witnesses[name].readings),
            "compared": sum(found.values.values()),
            "between_readings_only": sum(found.unknown.values()),
            "by_metric": {metric: [count, found.outside[metric]] for metric, count in sorted(found.values.items())},
        }
    print(json.dumps(figures, indent=2))
    faults = [f"{name}: {fault}" for name, found in compared.items() for fault in found.faults]
    for fault in faults[:20]:
        print(fault, file=sys.stderr)
    return 1 if faults or figures["gaps"] or figures["exit"] else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000))
