"""One Spark session per process: started once, quiet, and with this interpreter in every worker on this machine.

``--master`` is ``local[*]`` and its like, ``spark://host:port``, ``yarn``, ``k8s://...`` or, for Spark Connect,
``sc://host:port``. Under spark-submit, or in a notebook with a session, that session is used and never stopped.

Errors: ``NoSpark``, ``NoJava`` and ``WrongMaster`` say in one line what to install or to correct; what Spark itself has
to say goes to a file that only a failure quotes. A session whose JVM has died, or that a cluster or a server has given
up, is ``lost``: it can only be stopped, and another be started.

Whatever a JVM of ours writes on this machine is in one folder below the temporary one. It is removed when the session
is stopped, however the JVM ended, or at the end of this process; if that was killed, by the next session.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.base.errors import Invalid
from holdfast.base.scratch import Scratch
from holdfast.pipeline.connect import check_reachable, connect, first_line, forget, lost
from holdfast.pipeline.errors import NoJava, NoSpark, SparkFailed, WrongMaster

DEFAULT_MASTER = "local[*]"
OLDEST_JAVA = 17
FOLDER = "holdfast-spark-"
_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|(spark|sc)://[^\s:/]+:\d+\S*|k8s://\S+"
)
_REACHED = re.compile(r"(spark|k8s|sc)://")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_QUIET = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n
"""
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Without it Spark keeps its filters from tables that Python reads: files are then left out by nobody."""
_DEFAULTS = {
    PUSHDOWN: "true",
    "spark.app.name": "holdfast",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A frame of a few megabytes is a row of results at the most; results are summaries.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
    "spark.python.worker.reuse": "true",
    # Columns of megabytes come and go. By default glibc gives each back to the system at once, and a third of a task's
    # time goes into getting zeroed pages again; so a worker keeps up to half a gigabyte of what it has freed.
    "spark.executorEnv.MALLOC_ARENA_MAX": "1",
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
_ON_THIS_MACHINE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    # A JVM that lives for a minute gains nothing from the second compiler.
    _DRIVER_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_NO_TRACE = "-XX:-UsePerfData"
"""Otherwise every JVM writes figures about itself into a folder that stays, and that no setting moves."""


@dataclass
class Spark:
    """A session, and whether it is ours to stop."""

    session: Any
    ours: bool
    remote: bool = False
    """Spark Connect: there is no context, so tasks are neither counted nor cancelled from here."""
    server: str | None = None
    """Of Spark Connect, if the session is ours."""
    log: Path | None = None
    scratch: Scratch | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.scratch is not None:
            atexit.register(self.stop)  # for whoever forgets to

    @property
    def cores(self) -> int:
        """How many tasks run at the same time, as far as Spark tells."""
        return 8 if self.remote else max(1, int(self.session.sparkContext.defaultParallelism))

    def lost(self) -> str | None:
        """What became of the session, if it answers no more. Blocking."""
        if self.remote:
            return None if self.server is None else lost(self.session, self.server)
        context = self.session.sparkContext
        try:
            return "its context was stopped" if context._jsc is None or context._jsc.sc().isStopped() else None
        except unanswered() as error:
            return f"its JVM has ended or does not answer ({first_line(error)})"

    def stop(self) -> None:
        """End a session of ours and its JVM, whether it still answers or not. Idempotent."""
        if not self.ours:
            return
        self.ours = False
        atexit.unregister(self.stop)
        told = self.lost()
        if self.remote:
            self.session.stop() if told is None else forget(self.session)
        else:
            _end(self.session, told)
        if self.scratch is not None:
            self.scratch.close()


def unanswered() -> tuple[type[Exception], ...]:
    """What comes out of PySpark when its JVM is not there: of py4j, of a socket, of a context that was stopped."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415  # an extra, untyped

    return Py4JError, OSError, AttributeError


def start(master: str | None = None, conf: Mapping[str, str] | None = None, *, verbose: bool = False) -> Spark:
    """The session of this process: the one that is there, or a new one. Blocking, for seconds."""
    _check_pyspark()
    from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra, and slow to import

    try:
        found = SparkSession.getActiveSession()
    except unanswered() as error:
        told = f"the Spark session of this process does not answer ({first_line(error)})"
        raise SparkFailed(told, remedy="stop it and start another, or start this process again") from error
    if found is not None:
        return Spark(found, ours=False, remote=not hasattr(found, "_jsparkSession"))
    wanted = check_master(master)
    _choose_python(wanted)
    if wanted.startswith("sc://"):
        check_reachable(wanted)
        return Spark(connect(wanted, {PUSHDOWN: "true", **(conf or {})}), ours=True, remote=True, server=wanted)
    if not _submitted():
        check_reachable(wanted)
        _check_java()
    return _launch(wanted, conf or {}, submitted=_submitted(), verbose=verbose)


def check_ready(master: str | None) -> None:
    """What a session at this master needs, before any run begins that would fail for the lack of it. Blocking."""
    _check_pyspark()
    wanted = check_master(master)
    if wanted.startswith("sc://"):
        check_reachable(wanted)
    elif not _submitted():
        check_reachable(wanted)
        _check_java()


def _submitted() -> bool:
    """Whether spark-submit has started the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _choose_python(master: str) -> None:
    """Workers on this machine run this interpreter, or they would lack our packages; of others their owner may know."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if master.startswith("local"):
            os.environ[name] = sys.executable
        else:
            os.environ.setdefault(name, sys.executable)


def check_master(master: str | None) -> str:
    """The master that is meant, if there can be such a one."""
    wanted = master or os.environ.get("MASTER") or DEFAULT_MASTER
    if not _MASTER.fullmatch(wanted):
        raise WrongMaster(
            f"{wanted!r} is no Spark master",
            remedy="use local[*], local[4], spark://host:port, yarn, k8s://..., or sc://host:port for Spark Connect",
        )
    return wanted


def _launch(master: str, conf: Mapping[str, str], *, submitted: bool, verbose: bool) -> Spark:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  # an extra, and slow to import
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415  # as above
    from pyspark.sql import SparkSession  # noqa: PLC0415  # as above

    scratch = Scratch(FOLDER)
    scratch.sweep()
    log = scratch.path / "spark.log"
    settings = SparkConf()
    # Who submits has said where and how; only what was asked for here is added.
    chosen = conf if submitted else _settings(master, conf, scratch.path, verbose=verbose)
    for name, value in chosen.items():
        settings.set(name, value)
    if not submitted:
        settings.setMaster(master)
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _NO_TRACE)  # of the JVM that finds out how to start the other
    try:
        with log.open("wb") as errors:
            streams = {} if verbose else {"stderr": errors, "stdout": errors}
            owned = {"pass_fds": (scratch.descriptor,)}  # by the JVM too, which may outlive us by a moment
            gateway = launch_gateway(settings, streams | owned)  # type: ignore[no-untyped-call]  # PySpark's own
        session = SparkSession(SparkContext(conf=settings, gateway=gateway))
        session.sparkContext._accumulatorServer.handle_error = _untold  # type: ignore[method-assign]  # on purpose
        if submitted and not verbose:
            session.sparkContext.setLogLevel("ERROR")
        if _REACHED.match(master):
            _check_workers(session, master, log)
    except BaseException as error:  # py4j, PySpark and the JVM each have their own, and somebody may press Ctrl-C
        told = _told(log) or first_line(error)
        _end_gateway()
        scratch.close()
        if isinstance(error, WrongMaster) or not isinstance(error, Exception):
            raise
        kind = WrongMaster if _REACHED.match(master) or "master" in told.lower() else SparkFailed
        raise kind(f"{master}: Spark did not start ({told})") from error
    return Spark(session, ours=True, log=log, scratch=scratch)


def _settings(master: str, conf: Mapping[str, str], folder: Path, *, verbose: bool) -> dict[str, str]:
    found = dict(_DEFAULTS)
    if master.startswith("local"):
        found |= _ON_THIS_MACHINE
        found["spark.local.dir"] = str(folder)
        found["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    quiet = folder / "log4j2.properties"
    quiet.write_text(_QUIET.format(level="info" if verbose else "error"), encoding="utf-8")
    options = f"-Dlog4j2.configurationFile={quiet.as_uri()} {shlex.quote(f'-Djava.io.tmpdir={folder}')} {_NO_TRACE}"
    java = (_DRIVER_OPTIONS, _EXECUTOR_OPTIONS) if master.startswith("local") else (_DRIVER_OPTIONS,)
    for name in java:
        # What was asked for comes last, so it counts.
        found[name] = " ".join(filter(None, (found.get(name), options, conf.get(name))))
    return {**found, **{name: value for name, value in conf.items() if name not in java}}


def _check_workers(session: Any, master: str, log: Path) -> None:
    """A master that cannot be reached is given up by Spark only after a minute, in another thread."""
    context = session.sparkContext
    if context._jsc.sc().isStopped():
        raise WrongMaster(f"{master}: no Spark master answers there ({_told(log)})", remedy="check host and port")


def check_installed() -> None:
    """What a session on this machine needs: ``NoSpark`` or ``NoJava`` if it is not there."""
    _check_pyspark()
    _check_java()


def _check_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise NoSpark("PySpark is not installed", remedy="pip install 'holdfast[spark]'")


def _check_java() -> None:
    """Java that is new enough, or one clear line."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    told = ""
    if java is not None:
        try:
            answer = subprocess.run(
                [java, _NO_TRACE, "-version"], capture_output=True, text=True, timeout=60, check=False
            )
            told = answer.stderr + answer.stdout
        except OSError as error:
            raise NoJava(f"Java cannot be run at {java}: {error.strerror}", remedy=_GET_JAVA) from error
    found = _VERSION.search(told)
    if found is None:
        raise NoJava("Spark needs Java, and there is none", remedy=_GET_JAVA)
    if int(found[1]) < OLDEST_JAVA:
        raise NoJava(f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is {found[1]}", remedy=_GET_JAVA)


_GET_JAVA = (
    f"install Java {OLDEST_JAVA} or newer (such as openjdk-17-jre-headless), set JAVA_HOME, or use --master inline"
)


def _untold(request: object, client_address: object) -> None:
    """Of a JVM that is gone: its connection for accumulators ends, of which a server tells with a traceback."""


def _end(session: Any, told: str | None) -> None:
    """End a session and its JVM, so that another can be started in this process; ``told`` if it answers no more.

    PySpark lets go of a session last: while the JVM lives, it looks only every second whether it is to end itself.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra, and slow to import

    context = session.sparkContext
    if told is None:
        with suppress(*unanswered()):  # it has just ended
            context._jsc.stop()
    _end_gateway()
    context._jsc = None  # nobody is there to be told that it ends
    context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _end_gateway() -> None:
    """The JVM ends when its standard input does; the process must be waited for, or it stays as a zombie."""
    from pyspark import SparkContext  # noqa: PLC0415  # an extra, and slow to import

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is None:
        return
    process = gateway.proc
    gateway.shutdown()
    if process is not None:
        process.stdin.close()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _told(log: Path) -> str:
    """The line of Spark's own log that says most."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    telling = [line.strip() for line in lines if re.search(r"exception|error|failed|unable", line, re.IGNORECASE)]
    return (telling[0] if telling else "")[:300]


def read_conf(text: str) -> dict[str, str]:
    """``name=value`` of ``--conf``."""
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise Invalid(f"{text!r} is no setting of Spark", remedy="write it like spark.speculation=true")
    return {name: value}
