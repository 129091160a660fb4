"""A standalone cluster on the loopback, and a driver at it that does what tests tell it, and is killed by one of them.

With ``make soak`` it has two workers at addresses of their own, so they are two hosts to Spark: it never runs a copy
of a task on the host that the task runs on, and there would be no speculation on one.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.leftovers import adopt
from tests.soak import SOAKING
from tests.spark.readings import PYTHONPATH
from tests.tidy.tree import ROOT

PATIENCE_S = 240
HOSTS = ("127.0.0.1", "127.0.0.2") if SOAKING else ("127.0.0.1",)
CORES = 2
"""Of all workers: as many executors have one each."""
SPARK_HOME = Path(pyspark.__file__).parent
# A JVM that lives for a minute gains nothing from the second compiler, or from proving again that Spark is well built.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
LEASE_MS = 3_000
"""Of the write lock, as the driver takes it: the process after a killed one waits that long."""


def java_options(folder: Path) -> dict[str, str]:
    """For a JVM and those that it starts: nothing of theirs is left elsewhere, however they end."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    own = f"-XX:-UsePerfData -Djava.io.tmpdir={temporary}"
    return {"JDK_JAVA_OPTIONS": f"{QUICK} {own}", "TMPDIR": str(temporary)}


@dataclass(frozen=True)
class Server:
    process: "subprocess.Popen[bytes]"
    log: Path

    def logged(self, pattern: str) -> str:
        """What it says of itself, once it has said it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(pattern, self.log.read_text(encoding="utf-8", errors="replace"))
            if found is not None:
                return found[1]
            time.sleep(0.1)
        text = self.log.read_text(encoding="utf-8", errors="replace")
        raise AssertionError(f"{self.log.name} never said {pattern}: {text[-3000:]}")


@contextmanager
def daemon(folder: Path, name: str, host: str, *words: str) -> Iterator[Server]:
    """One of Spark's own servers."""
    log = folder / f"{name}.log"
    own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "600m", "SPARK_LOCAL_IP": host}
    environ = {**os.environ, **own, **java_options(folder), "PYSPARK_PYTHON": sys.executable}
    anywhere = ("--host", host, "--port", "0", "--webui-port", "0")
    command = [str(SPARK_HOME / "bin" / "spark-class"), *words, *anywhere]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environ)
    adopt(process.pid)
    try:
        yield Server(process, log)
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Driver:
    """A driver at the cluster (``cluster_driver``): started at its first command, and anew if it is dead."""

    def __init__(self, folder: Path, master: str) -> None:
        self.folder = folder
        self.commits = folder / "commits"
        """Where the process that commits a ``gated_reading`` waits."""
        self.commits.mkdir()
        self.master = master
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._answers = folder / "answers"
        self._heard = 0

    def start(self) -> None:
        self._process = self._started()

    def ready(self) -> None:
        """Wait for its session. It takes as long to start as the workers do."""
        if self._process is None:
            self.start()
        if not self._is_ready:
            self._is_ready = bool(self.answer())

    def tell(self, do: str, **words: Any) -> None:
        self.ready()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Its answer to the last command."""
        self.until(lambda: self._answers.exists() and self._answers.read_bytes().count(b"\n") > self._heard)
        self._heard += 1
        return json.loads(self._answers.read_bytes().splitlines()[self._heard - 1])

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the driver, or one of its tasks, brings about."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process is not None
            assert self._process.poll() is None, self._errors()
            assert time.monotonic() < deadline, f"it never came to that: {self._errors()}"
            time.sleep(0.02)

    def kill(self) -> None:
        """The driver, and its JVM and their workers first: at once, and wherever they are."""
        process, self._process, self._is_ready = self._process, None, False
        if process is None:
            return
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for each in below:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
        process.communicate()
        deadline = time.monotonic() + PATIENCE_S
        while any(map(_alive, below)):
            assert time.monotonic() < deadline, "a killed process goes on"
            time.sleep(0.02)

    def _started(self) -> "subprocess.Popen[bytes]":
        own = {"PYTHONPATH": PYTHONPATH, "GATE_COMMIT": str(self.commits)}
        own["HOLDFAST_ONTOLOGY__S3_LEASE_TTL_MS"] = str(LEASE_MS)
        command = [sys.executable, "-m", "tests.spark.cluster_driver", self.master, str(self._answers)]
        with (self.folder / "errors").open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **java_options(self.folder), **own},
            )
        adopt(process.pid)
        return process

    def _errors(self) -> str:
        return (self.folder / "errors").read_text(errors="replace")[-3000:]


@contextmanager
def driver_at_a_cluster(folder: Path) -> Iterator[Driver]:
    with ExitStack() as stack:
        master = stack.enter_context(daemon(folder, "master", HOSTS[0], "org.apache.spark.deploy.master.Master"))
        address = master.logged(r"Starting Spark master at (spark://\S+)")
        driver = Driver(folder, address)
        stack.callback(driver.kill)
        driver.start()
        cores = str(CORES // len(HOSTS))
        for number, host in enumerate(HOSTS):
            words = ("org.apache.spark.deploy.worker.Worker", address, "-c", cores, "-m", "1g")
            place = ("-d", str(folder / f"work{number}"))
            worker = stack.enter_context(daemon(folder, f"worker{number}", host, *words, *place))
            worker.logged(r"(Successfully registered with master)")
        driver.ready()
        yield driver


def executor_of(worker: int) -> psutil.Process:
    """The JVM above a worker of Python and its daemon."""
    for process in psutil.Process(worker).parents():
        if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
            return process
    raise AssertionError(f"worker {worker} is no executor's")


def _alive(process: psutil.Process) -> bool:
    """Its parent may be gone."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
