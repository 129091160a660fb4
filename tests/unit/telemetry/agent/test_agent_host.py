"""What an agent reports of its host, beside what ``/proc`` says; and which processes."""

import os
import re
from pathlib import Path

from holdfast.telemetry.agent.host import MOST_PROCESSES, HostMeter, Process
from holdfast.telemetry.records import Counter, Gauge, Record
from tests.tidy.tree import ROOT

HZ = os.sysconf("SC_CLK_TCK")


def read_proc() -> dict[tuple[str, str], float]:
    """Some metrics by name and label, without psutil."""
    found: dict[tuple[str, str], float] = {}
    first, *_ = Path("/proc/stat").read_text().splitlines()
    for mode, ticks in zip(("user", "nice", "system"), first.split()[1:], strict=False):
        found["lightmetrics_host_cpu_seconds_total", mode] = int(ticks) / HZ
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    found["node_memory_MemTotal_bytes", ""] = int(memory["MemTotal"].split()[0]) * 1024
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        device, _, counts = line.partition(":")
        found["node_network_receive_bytes_total", device.strip()] = int(counts.split()[0])
        found["node_network_transmit_bytes_total", device.strip()] = int(counts.split()[8])
    own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[11:13]
    found["lmagent_process_cpu_seconds_total", ""] = sum(map(int, own)) / HZ
    return found


def test_counters_lie_between_two_readings_of_proc_and_every_documented_metric_is_measured(tmp_path: Path) -> None:
    meter = HostMeter(tmp_path)
    before, records, after = read_proc(), meter.measure(1), read_proc()
    measured = [each for each in records if isinstance(each, Gauge | Counter)]
    found = {(each.name, each.labels.get("mode") or each.labels.get("device") or ""): each.value for each in measured}
    for key in before.keys() & after.keys():
        assert before[key] - 1.5 / HZ <= found[key] <= after[key] + 1.5 / HZ, key
    page = (ROOT / "docs" / "operate" / "agents.md").read_text()
    documented = set(re.findall(r"`((?:lmagent|node|lightmetrics)_\w+)`", page))
    own = {"queue_bytes", "queue_records", "parked_batches", "dropped_records_total", "sent_batches_total"}
    of_the_agent = {f"lmagent_{name}" for name in {*own, "send_failures_total"}}
    assert {each.name for each in measured} == documented - of_the_agent


def fake_process(proc: Path, pid: int, ticks: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True, parents=True)
    fields = ["S", "1", *["0"] * 9, str(ticks), "0", *["0"] * 6, "777", "0", "10", *["0"] * 20]
    (proc / str(pid) / "stat").write_text(f"{pid} (worker {pid}) (x) {' '.join(fields)}\n")
    (proc / str(pid) / "cmdline").write_text("--password=secret")


def processes(records: list[Record]) -> list[dict[str, str]]:
    name = "lightmetrics_process_cpu_seconds_total"
    return [dict(each.labels) for each in records if isinstance(each, Counter) and each.name == name]


def test_the_busiest_since_the_last_round_are_reported_and_never_a_command_line(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid in range(1, 21):
        fake_process(proc, pid, 1_000 * pid)
    meter, all_of_them = HostMeter(tmp_path, processes=3, proc=proc), HostMeter(tmp_path, processes=100, proc=proc)
    meter.measure(1)
    for pid in (4, 9, 2):
        fake_process(proc, pid, 1_000 * pid + 50 + pid)
    records = meter.measure(2)
    start = f"{777 / HZ:.2f}"
    found = sorted(processes(records), key=lambda labels: labels["pid"])
    assert found == [{"pid": str(pid), "start_time": start, "comm": f"worker {pid}) (x"} for pid in (2, 4, 9)]
    assert "secret" not in repr(records)
    all_of_them.measure(1)
    assert len(processes(all_of_them.measure(2))) == MOST_PROCESSES
    assert [Process.parse(line) for line in ("", "12 (half a line")] == [None, None]
