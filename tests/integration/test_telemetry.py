"""What a running agent says of this machine, beside what ``/proc`` and psutil say; ``make soak`` has minutes of it."""

from pathlib import Path

from tests.integration.proc_witness import compare, watched


def test_counters_of_a_running_agent_lie_between_two_readings_of_others(tmp_path: Path) -> None:
    place, witnesses, figures = watched(tmp_path, 3, interval_ms=200, batch_ms=0)
    assert figures["exit"] == 0
    assert figures["resident_mib_highest"] < 200
    counters = (
        "node_cpu_seconds_total",
        "lightmetrics_host_cpu_seconds_total",
        "node_network_receive_bytes_total",
        "node_network_transmit_bytes_total",
        "lmagent_process_cpu_seconds_total",
    )
    for witness in witnesses.values():
        found = compare(place, witness)
        assert found.faults == []
        assert found.outside["node_memory_MemTotal_bytes"] == 0
        gauges = ("node_memory_MemTotal_bytes", "node_load1", "node_memory_MemAvailable_bytes")
        assert all(found.values[name] > 0 for name in (*gauges, *counters))
    exact = compare(place, witnesses["proc"])
    assert exact.outside["lmagent_queue_filesystem_size_bytes"] == 0
    assert exact.values["lmagent_queue_filesystem_size_bytes"] > 0
