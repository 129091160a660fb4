"""Tables for people, from the figures that are kept as JSON."""

from typing import Any

from bench.lib import table

FLOOR_AIM = 1.2

Figures = dict[str, dict[str, Any]]
"""By contender."""


def run_table(results: dict[str, dict[str, Figures]]) -> str:
    header = (
        *("run", "contender", "steps/s", "ms", "spread", "x floor", "x conditional"),
        *("CPU us/step", "requests/step", "KiB/step"),
    )
    rows = [
        (
            f"{store}: {steps} steps",
            name,
            f"{figures['steps_per_second']:,.0f}",
            f"{figures['milliseconds']:,.1f}",
            _spread(figures),
            _times(name, figures["times_floor"]),
            _times(name, figures["times_conditional_floor"]),
            f"{figures['cpu_us_per_step']:,.0f}",
            f"{figures['requests_per_step']:.3f}" if figures["requests_per_step"] else "",
            f"{figures['uploaded_per_step'] / 1024:.1f}",
        )
        for store, by_steps in results.items()
        for steps, contenders in by_steps.items()
        for name, figures in contenders.items()
    ]
    return table(header, rows)


def resume_table(results: dict[str, dict[str, Figures]]) -> str:
    header = ("resume", "contender", "ms", "spread", "replay alone", "x floor", "requests")
    rows = [
        (
            f"{store}: {steps} steps",
            name,
            f"{figures['milliseconds']:,.1f}",
            _spread(figures),
            f"{figures['replay_milliseconds']:,.1f}" if figures["replay_milliseconds"] else "",
            f"{figures['times_floor']:.2f}",
            f"{figures['requests']:,.0f}" if figures["requests"] else "",
        )
        for store, by_steps in results.items()
        for steps, contenders in by_steps.items()
        for name, figures in contenders.items()
    ]
    return table(header, rows)


def sqlite_lines(settings: dict[str, dict[str, Any]]) -> str:
    said = [f"{name}: " + ", ".join(f"{key} {value}" for key, value in each.items()) for name, each in settings.items()]
    return "\n".join([*said, "replay alone: without what DBOS does between its launch and the workflow's first line"])


def growth_table(found: dict[str, Any]) -> str:
    header = ("growth", "uploaded MiB", "in one object", "writes/step", "resume reads", "resume MiB")
    rows = [
        (
            f"{point['steps']:,} steps",
            f"{point['uploaded'] / 2**20:,.1f}",
            f"{point['in_one_object'] / 2**20:,.1f}",
            f"{point['writes_per_step']:.3f}",
            str(point["resume_reads"]),
            f"{point['resume_bytes'] / 2**20:.1f}",
        )
        for point in found["points"]
    ]
    aim = "met" if found["slope"] <= found["slope_aim"] else "MISSED"
    slope = f"slope of bytes over steps: {found['slope']} (aim {found['slope_aim']}: {aim})"
    return f"{table(header, rows)}\n{slope}; in one object {found['slope_in_one_object']}"


def _times(name: str, times: float) -> str:
    verdict = f" {'met' if times <= FLOOR_AIM else 'MISSED'}" if name == "ours" else ""
    return f"{times:.2f}{verdict}"


def _spread(figures: dict[str, Any]) -> str:
    low, high = figures["milliseconds_spread"]
    return f"{low:,.1f}-{high:,.1f}"
