"""``python -m bench.runs.dbos_process FILE serve|die|recover STEPS``: the same workflow on DBOS, in its own process.

``serve`` reads a workflow id per line and answers what running it took; ``die`` records all steps of one workflow and
ends by SIGKILL; ``recover`` lets DBOS find and finish that workflow. Every line of output is JSON; the first one says
how SQLite is set. A plain function is used, because DBOS is faster with it than with a coroutine.
"""

import json
import os
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.runs.work import RESULT

UNFINISHED = "unfinished"


def say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def uploaded() -> int:
    """Bytes that this process has handed to the system to write."""
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def sqlite_settings(engine: Any) -> dict[str, Any]:
    text = import_module("sqlalchemy").text
    names = ("journal_mode", "synchronous", "page_size")
    with engine.connect() as connection:
        found = {name: connection.execute(text(f"pragma {name}")).scalar() for name in names}
    levels = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
    return {**found, "synchronous": levels[found["synchronous"]]}


class Bench:
    def __init__(self, file: Path, mode: str) -> None:
        self._dbos: Any = import_module("dbos")
        self._mode = mode
        self._replay = 0.0
        self._done = threading.Event()
        kind = self._dbos.DBOS
        self._instance = kind(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{file}",
                "log_level": "ERROR",
                "run_admin_server": False,
            }
        )
        self.workflow = self._define(kind)

    def launch(self) -> dict[str, Any]:
        self._dbos.DBOS.launch()
        return sqlite_settings(self._instance._sys_db.engine)

    def run(self, name: str, steps: int) -> None:
        with self._dbos.SetWorkflowID(name):
            if self.workflow(steps) != steps:
                raise RuntimeError(f"a workflow of {steps} steps returned something else")

    def recover(self) -> tuple[float, float]:
        """Seconds from launch to the end of the workflow that was found unfinished, and of its replay alone."""
        began = time.perf_counter()
        self._dbos.DBOS.launch()
        if not self._done.wait(60):
            raise RuntimeError("DBOS has not recovered the workflow")
        return time.perf_counter() - began, self._replay

    def close(self) -> None:
        self._dbos.DBOS.destroy()

    def _define(self, kind: Any) -> Any:
        def turn(number: int) -> str:
            if self._mode == "recover":
                raise RuntimeError("a recorded step ran again")
            return RESULT

        def last() -> None:
            if self._mode == "die":
                os.kill(os.getpid(), signal.SIGKILL)

        one, end = kind.step(name="turn")(turn), kind.step(name="last")(last)

        def work(steps: int) -> int:
            began = time.perf_counter()
            for number in range(steps):
                one(number)
            if self._mode != "serve":
                end()
                self._replay = time.perf_counter() - began
                self._done.set()
            return steps

        return kind.workflow(name="bench")(work)


def main() -> None:
    file, mode, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    bench = Bench(file, mode)
    if mode == "recover":
        seconds, alone = bench.recover()
        say({"seconds": seconds, "alone": alone})
        bench.close()
        return
    say(bench.launch())
    if mode == "die":
        bench.run(UNFINISHED, count)
    for line in sys.stdin:
        wrote, cpu, began = uploaded(), time.process_time(), time.perf_counter()
        bench.run(line.strip(), count)
        seconds = time.perf_counter() - began
        say({"seconds": seconds, "cpu_seconds": time.process_time() - cpu, "uploaded": uploaded() - wrote})
    bench.close()


if __name__ == "__main__":
    main()
