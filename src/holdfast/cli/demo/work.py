"""Act 1: a run whose process is killed again and again goes on, and repeats no recorded step."""

import json
import signal
from collections import Counter
from typing import Any

from holdfast.cli.demo.stage import Stage
from holdfast.cli.demo.victim import SHELVES

KILL_AFTER = (7, 5, 6)  # lines of each process; the next one may finish


async def survives_kills(stage: Stage) -> None:
    ran: list[str] = []
    lines: list[str] = []
    said: dict[str, Any] = {}
    for number, most in enumerate((*KILL_AFTER, 0), 1):
        lines, said = await victim(stage, "run", most)
        stage.say(f"  process {number}: {lines[0]} to {lines[-1]}, {'killed with SIGKILL' if most else 'finished'}")
        ran += lines
    stage.check("the run's result is right", said["result"] == 10 * sum(range(1, SHELVES + 1)), said)
    check_steps(stage, ran, {f"shelf {number}" for number in range(1, SHELVES + 1)}, len(KILL_AFTER))
    puts = said["requests"]["put"]
    stage.check(f"the last {len(lines)} steps cost {puts} PUT requests", puts <= len(lines) + 6, said)


async def victim(stage: Stage, mode: str, most: int = 0) -> tuple[list[str], dict[str, Any]]:
    """The lines of a process that is killed after about so many; with 0, of one that ends by itself, and its result."""
    stage.wait_for("a process starts")
    lines: list[str] = []
    async with stage.process("victim", "holdfast.cli.demo.victim", mode) as process:
        async for line in process.lines():
            lines.append(line)
            if len(lines) == most:
                process.send(signal.SIGKILL)  # the loop goes on: it may have printed more before its end
        if most:
            return lines, {}
        await process.succeed()
    said: dict[str, Any] = json.loads(lines.pop())
    stage.charge(said["requests"])
    return lines, said


def check_steps(stage: Stage, ran: list[str], wanted: set[str], kills: int) -> None:
    times = Counter(ran)
    repeated = len(ran) - len(times)
    claim = f"{len(wanted)} steps ran, {repeated} of them twice: at most one for each kill, which interrupted it"
    stage.check(claim, times.keys() == wanted and repeated <= kills, times)
