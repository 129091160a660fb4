"""What an agent says of its host, against what ``/proc`` says."""

import os
from pathlib import Path

import psutil

from holdfast.telemetry.agent.host import MOST_PROCESSES, HostMeter, Process
from holdfast.telemetry.records import Counter, Gauge, Record

HZ = os.sysconf("SC_CLK_TCK")


def values(records: list[Record], name: str) -> dict[tuple[tuple[str, str], ...], float]:
    found = [record for record in records if isinstance(record, Gauge | Counter) and record.name == name]
    return {tuple(sorted(record.labels.items())): record.value for record in found}


def proc_stat() -> dict[str, list[int]]:
    lines = Path("/proc/stat").read_text().splitlines()
    return {line.split()[0]: [int(each) for each in line.split()[1:]] for line in lines if line.startswith("cpu")}


def test_processor_time_lies_between_two_looks_at_proc_stat(tmp_path: Path) -> None:
    before = proc_stat()
    records = HostMeter(tmp_path).measure(1)
    after = proc_stat()
    ours = values(records, "node_cpu_seconds_total")
    for position, mode in enumerate(("user", "nice", "system", "idle")):
        low, high = before["cpu0"][position] / HZ, after["cpu0"][position] / HZ
        assert low <= ours[("cpu", "0"), ("mode", mode)] <= high
        total = values(records, "lightmetrics_host_cpu_seconds_total")[("mode", mode),]
        assert before["cpu"][position] / HZ <= total <= after["cpu"][position] / HZ
    assert {dict(labels)["cpu"] for labels in ours} == {name[3:] for name in before if name != "cpu"}


def test_memory_and_load_are_those_of_proc(tmp_path: Path) -> None:
    records = HostMeter(tmp_path).measure(1)
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    assert values(records, "node_memory_MemTotal_bytes") == {(): memory["MemTotal"]}
    available = values(records, "node_memory_MemAvailable_bytes")[()]
    assert 0 < available < memory["MemTotal"]
    assert abs(available - memory["MemAvailable"]) < memory["MemTotal"] / 4
    assert set(values(records, "node_load1")) == set(values(records, "node_load15")) == {()}


def test_network_counters_lie_between_two_looks(tmp_path: Path) -> None:
    def looked() -> dict[str, tuple[int, int]]:
        rows = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
        return {name.strip(): (int(rest.split()[0]), int(rest.split()[8])) for name, rest in rows}

    before = looked()
    records = HostMeter(tmp_path).measure(1)
    after = looked()
    received = values(records, "node_network_receive_bytes_total")
    sent = values(records, "node_network_transmit_bytes_total")
    for device, (first_received, first_sent) in before.items():
        assert first_received <= received[("device", device),] <= after[device][0]
        assert first_sent <= sent[("device", device),] <= after[device][1]


def test_own_figures_and_the_queues_disk(tmp_path: Path) -> None:
    records = HostMeter(tmp_path).measure(1)
    assert values(records, "lmagent_up") == {(): 1}
    own = psutil.Process()
    resident = values(records, "lmagent_process_resident_memory_bytes")[()]
    assert resident > 10_000_000
    assert resident <= own.memory_info().rss * 2
    assert 0 < values(records, "lmagent_process_cpu_seconds_total")[()] <= sum(own.cpu_times()[:2]) + 0.1
    disk = os.statvfs(tmp_path)
    assert values(records, "lmagent_queue_filesystem_size_bytes") == {(): disk.f_blocks * disk.f_frsize}
    assert 0 < values(records, "lmagent_queue_filesystem_avail_bytes")[()] <= disk.f_blocks * disk.f_frsize


def test_at_most_eight_processes_and_never_a_command_line(tmp_path: Path) -> None:
    meter = HostMeter(tmp_path, processes=100)
    meter.measure(1)
    cpu = values(meter.measure(2), "lightmetrics_process_cpu_seconds_total")
    assert 0 < len(cpu) <= MOST_PROCESSES
    for labels in map(dict, cpu):
        assert set(labels) == {"pid", "start_time", "comm"}
        assert len(labels["comm"]) <= 64


def fake_process(proc: Path, pid: int, comm: str, ticks: int, pages: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = ["S", "1", *["0"] * 9, str(ticks), "0", *["0"] * 6, "777", "0", str(pages), *["0"] * 20]
    (proc / str(pid) / "stat").write_text(f"{pid} ({comm}) {' '.join(fields)}\n")
    (proc / str(pid) / "cmdline").write_text("--password=secret")


def test_the_busiest_since_the_last_round_are_reported(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    for pid in range(1, 21):
        fake_process(proc, pid, f"worker {pid}) (x", 1_000 * pid, 10)
    meter = HostMeter(tmp_path, processes=3, proc=proc)
    meter.measure(1)
    for pid in (4, 9, 2):
        fake_process(proc, pid, f"worker {pid}) (x", 1_000 * pid + 50 + pid, 10)
    records = meter.measure(2)
    cpu = values(records, "lightmetrics_process_cpu_seconds_total")
    assert {dict(labels)["comm"] for labels in cpu} == {"worker 4) (x", "worker 9) (x", "worker 2) (x"}
    assert {dict(labels)["start_time"] for labels in cpu} == {f"{777 / HZ:.2f}"}
    assert "secret" not in repr(records)


def test_a_line_that_is_no_process_is_passed_over() -> None:
    assert Process.parse("") is None
    assert Process.parse("12 (half a line") is None
