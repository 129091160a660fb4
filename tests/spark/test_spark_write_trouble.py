"""Writing with Spark in trouble: drivers killed at every stage, executors killed under speculation. One commit."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from holdfast.objects.stack import open_store
from holdfast.ontology import layout, loads
from holdfast.ontology.verify import verify
from tests.spark.readings import batches, readings
from tests.spark.test_spark_trouble import PATIENCE_S, SPECULATION, executor_of
from tests.spark.test_spark_write import arrived
from tests.tidy.tree import ROOT

Driver = subprocess.Popen[bytes]


def started(tmp_path: Path, arguments: list[str], environ: Mapping[str, str]) -> Driver:
    """A driver, with a JVM and workers below it."""
    command = [sys.executable, "-m", "tests.spark.write_driver", *arguments]
    with (tmp_path / "errors").open("ab") as errors:
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        )


def killed(driver: Driver) -> None:
    """All that it has started, at once, and then itself."""
    below = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
    for process in [*below, *([psutil.Process(driver.pid)] if driver.poll() is None else [])]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    driver.wait()
    deadline = time.monotonic() + PATIENCE_S
    while any(map(alive, below)):
        assert time.monotonic() < deadline, "a killed process goes on"
        time.sleep(0.02)


def alive(process: psutil.Process) -> bool:
    """Nobody may be there to bury it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool], driver: Driver, errors: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert driver.poll() is None, errors.read_text()
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


@pytest.mark.timeout(5 * PATIENCE_S)
def test_a_driver_of_a_stream_is_killed_at_every_stage(tmp_path: Path) -> None:
    """Before anything is staged; when all is staged; when it is committed, and Spark may not know."""
    store, files, log = tmp_path / "store", tmp_path / "files", tmp_path / "log"
    for number in range(2):
        arrived(files, number, 10)
    arguments = ["stream", f"file:{store}", str(files), str(log)]
    tasks, commits = tmp_path / "tasks", tmp_path / "commits"
    staged, head = store / layout.LOADS, store / layout.HEAD
    points: list[tuple[dict[str, str], Callable[[], bool]]] = [
        ({"GATE_TASK": str(tasks)}, lambda: any(tasks.glob("task.*"))),
        ({"GATE_COMMIT": str(commits)}, lambda: any(commits.glob("commit.*")) and any(staged.rglob("*.parquet"))),
        ({}, head.exists),
    ]
    for folder in (tasks, commits):
        folder.mkdir()
    for environ, reached in points:
        driver = started(tmp_path, arguments, environ)
        try:
            wait_for(reached, driver, tmp_path / "errors")
        finally:
            killed(driver)
    assert not any(tasks.glob("go"))
    driver = started(tmp_path, arguments, {})
    try:
        assert driver.wait(timeout=PATIENCE_S) == 0, (tmp_path / "errors").read_text()
    finally:
        killed(driver)
    asyncio.run(seen(f"file:{store}", [0, 1], 20))


async def seen(uri: str, numbers: list[int], rows: int) -> None:
    async with open_store(uri) as store:
        assert await batches(store) == numbers
        assert len(await readings(store)) == rows
        report = await verify(store, deep=True)
        assert report.good
        left = await loads.staged_loads(store)
        assert {each.key for each in report.findings if each.kind == "staged_load"} == {
            layout.load_prefix(each.load) for each in left
        }
        assert len(await loads.sweep(store, age_ns=-(10**15))) == sum(len(each.keys) for each in left)


@pytest.mark.timeout(3 * PATIENCE_S)
def test_an_executor_is_killed_while_a_load_is_speculated(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    uri = f"file:{tmp_path / 'store'}"
    driver = started(tmp_path, ["load", uri, str(gate), *SPECULATION], {})
    try:
        wait_for(lambda: any(gate.glob("task.*")), driver, tmp_path / "errors")
        executor_of(int(next(gate.glob("task.*")).suffix[1:])).kill()
        (gate / "go").touch()
        assert driver.wait(timeout=PATIENCE_S) == 0, (tmp_path / "errors").read_text()
    finally:
        killed(driver)
    asyncio.run(seen(uri, [0], 400))
