"""Which processes an agent reports; what else it says of its host is judged in ``tests/integration/test_telemetry``."""

import os
from pathlib import Path

from holdfast.telemetry.agent.host import MOST_PROCESSES, HostMeter, Process
from holdfast.telemetry.records import Counter, Record

HZ = os.sysconf("SC_CLK_TCK")


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
