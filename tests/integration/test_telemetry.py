"""What a running agent says of this machine, beside what ``/proc`` says. ``make soak`` does the same for minutes."""

from pathlib import Path

from tests.integration.proc_witness import compare, watched


def test_counters_of_a_running_agent_lie_between_two_readings_of_proc(tmp_path: Path) -> None:
    place, witness, figures = watched(tmp_path, 3, interval_ms=200, batch_ms=0)
    found = compare(place, witness)
    assert found.faults == []
    assert figures["exit"] == 0
    exact = ("node_memory_MemTotal_bytes", "lmagent_queue_filesystem_size_bytes")
    assert [found.outside[name] for name in exact] == [0, 0]
    counters = (
        "node_cpu_seconds_total",
        "lightmetrics_host_cpu_seconds_total",
        "node_network_receive_bytes_total",
        "node_network_transmit_bytes_total",
        "lmagent_process_cpu_seconds_total",
    )
    assert all(found.values[name] > 0 for name in (*exact, *counters, "node_load1", "node_memory_MemAvailable_bytes"))
