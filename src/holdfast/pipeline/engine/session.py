"""One Spark session per process, made with ``SparkSession.builder``: quiet, with this interpreter in workers on this
machine.

``--master`` is ``local[*]`` and its like, ``spark://host:port``, ``yarn``, ``k8s://...`` or, for Spark Connect,
``sc://host:port``. Under spark-submit, or in a notebook that has a session, the existing session is used and never
stopped.

PySpark starts one JVM per process and has no public way to end or replace it: ``stop`` ends the session, and the JVM
ends with the process. So the settings of a JVM (its memory, its options) are those of the first session.

Whatever a JVM of ours writes on this machine is in one folder below the temporary one. It is removed at the end of this
process; if that was killed, by the next process that starts Spark.

Errors: ``NoSpark``, ``NoJava`` and ``WrongMaster`` say in one line what to install or to correct. ``SparkLost`` if a
session has ended, whether its JVM, its cluster or its Spark Connect server did: this process ends, and the next one
starts another. What Spark logs goes to a file, of which a failure to start quotes a line.
"""

import atexit
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.base.errors import Invalid
from holdfast.base.scratch import Scratch
from holdfast.pipeline.errors import NoJava, NoSpark, SparkFailed, SparkLost, WrongMaster

DEFAULT_MASTER = "local[*]"
OLDEST_JAVA = 17
FOLDER = "holdfast-spark-"
ANSWER_S = 10.0
CONNECT_TRIES = 5
"""Retries after the first attempt, each with four times the pause: some twenty seconds in all, where PySpark takes ten
minutes."""
_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|(spark|sc)://[^\s:/]+:\d+\S*|k8s://\S+"
)
_REACHED = re.compile(r"(spark|k8s|sc)://")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LOGGING = """\
rootLogger.level = {level}
rootLogger.appenderRef.{kind}.ref = {kind}
appender.{kind}.type = {type}
appender.{kind}.name = {kind}
{where}
appender.{kind}.layout.type = PatternLayout
appender.{kind}.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = {level}
"""
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Without it Spark does not pass filters to Python data sources, so no file could be skipped."""
_DEFAULTS = {
    PUSHDOWN: "true",
    "spark.app.name": "holdfast",
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
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    # A JVM that lives for a minute gains nothing from the second compiler.
    _DRIVER_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_NO_TRACE = "-XX:-UsePerfData"
"""Otherwise every JVM leaves a file with its performance counters in a directory that no setting can move."""


@dataclass
class Spark:
    """A session, and whether this process may stop it."""

    session: Any
    ours: bool
    remote: bool = False
    """With Spark Connect there is no context, so tasks can be neither counted nor cancelled from here."""
    folder: Path | None = None
    """Where its JVM writes, if we started it on this machine."""

    def __post_init__(self) -> None:
        if self.ours:
            atexit.register(self.stop)

    @property
    def cores(self) -> int:
        """How many tasks run at the same time, as far as Spark says."""
        return 8 if self.remote else max(1, int(self.session.sparkContext.defaultParallelism))

    def lost(self) -> SparkLost | None:
        """The error to raise if the session does not answer any more; None if it answers. Blocking."""
        try:
            if self.remote:
                self.session.conf.get("spark.sql.session.timeZone")
            else:
                self.session.sparkContext.defaultParallelism  # noqa: B018  # which the JVM is asked for
        except unanswered(remote=self.remote) as error:
            return SparkLost(f"the Spark session is gone: it, its JVM or its server has ended ({first_line(error)})")
        return None

    def stop(self) -> None:
        """End a session of ours, whether it still answers or not. Idempotent."""
        if not self.ours:
            return
        self.ours = False
        atexit.unregister(self.stop)
        if self.remote and self.lost() is not None:
            self.session.release_session_on_close = False  # there is no server to release it
        with warnings.catch_warnings(), suppress(*unanswered()):
            warnings.simplefilter("ignore")  # PySpark warns of a JVM that does not answer
            self.session.stop()


def unanswered(*, remote: bool = False) -> tuple[type[Exception], ...]:
    """What PySpark raises when its JVM has ended: errors of py4j, of a socket, of a stopped context; or the server of a
    ``remote`` session, where a closed channel is a ``ValueError``.
    """
    if remote:
        from grpc import RpcError  # type: ignore[import-untyped]  # noqa: PLC0415  # an extra, untyped
        from pyspark.errors import PySparkException  # noqa: PLC0415  # an extra, and slow to import

        return PySparkException, RpcError, ValueError
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415  # an extra, untyped

    return Py4JError, OSError, AttributeError


def is_remote(session: Any) -> bool:
    """Whether a session is one of Spark Connect, which has no context."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def start(master: str | None = None, conf: Mapping[str, str] | None = None, *, verbose: bool = False) -> Spark:
    """The session of this process: the existing one, or a new one. Blocks for seconds."""
    _check_pyspark()
    from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra, and slow to import

    try:
        found = SparkSession.getActiveSession()
    except unanswered() as error:
        raise SparkLost(f"the Spark session of this process does not answer ({first_line(error)})") from error
    if found is not None:
        return Spark(found, ours=False, remote=is_remote(found))
    wanted = check_master(master)
    if not _submitted():
        _choose_python(wanted)
    if wanted.startswith("sc://"):
        check_reachable(wanted)
        return Spark(_connect(wanted, {PUSHDOWN: "true", **(conf or {})}), ours=True, remote=True)
    if not _submitted():
        check_reachable(wanted)
        _check_java()
    return _launch(wanted, conf or {}, submitted=_submitted(), verbose=verbose)


def check_ready(master: str | None) -> None:
    """Check what a session at this master needs, before any run begins that would fail without it. Blocking."""
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
    """Workers on this machine must run this interpreter, or they would lack our packages. Workers elsewhere are
    configured by the operator of the cluster."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if master.startswith("local"):
            os.environ[name] = sys.executable
        else:
            os.environ.setdefault(name, sys.executable)


def check_master(master: str | None) -> str:
    """The checked URL of a master; ``WrongMaster`` if it has no valid form."""
    wanted = master or os.environ.get("MASTER") or DEFAULT_MASTER
    if not _MASTER.fullmatch(wanted):
        raise WrongMaster(
            f"{wanted!r} is not a Spark master",
            remedy="use local (without Spark), local[*], local[4], spark://host:port, yarn, k8s://..., or "
            "sc://host:port for Spark Connect",
        )
    return wanted


_folders: list[Scratch] = []
"""The directory of this process's JVM, from its start until the process ends; empty before."""


def _folder() -> Path:
    """The directory that the JVM of this process writes to. It lives as long as the process, as the JVM does."""
    if not _folders:
        scratch = Scratch(FOLDER)
        scratch.sweep()
        atexit.register(scratch.close)
        _folders.append(scratch)
    return _folders[0].path


def _launch(master: str, conf: Mapping[str, str], *, submitted: bool, verbose: bool) -> Spark:
    from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra, and slow to import

    folder = None if submitted else _folder()
    builder: Any = SparkSession.builder
    if folder is not None:
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _NO_TRACE)  # of the JVM that finds out how to start the other
        builder = builder.master(master)
    # spark-submit has its caller's settings; only those given here are added.
    for name, value in (conf if folder is None else _settings(master, conf, folder, verbose=verbose)).items():
        builder = builder.config(name, value)
    try:
        spark = Spark(builder.getOrCreate(), ours=True, folder=folder)
    except Exception as error:  # py4j, PySpark and the JVM each have their own
        reported = _logged(folder) or first_line(error)
        if isinstance(error, ConnectionError):
            raise SparkLost(f"the JVM of this process has ended ({reported})") from error
        kind = WrongMaster if _REACHED.match(master) or "master" in reported.lower() else SparkFailed
        raise kind(f"{master}: Spark did not start ({reported})") from error
    # A master that cannot be reached is given up by Spark only after a minute, in another thread.
    if _REACHED.match(master) and (gone := spark.lost()) is not None:
        spark.stop()
        reported = _logged(folder) or str(gone)
        raise WrongMaster(f"{master}: no Spark master answers there ({reported})", remedy="check host and port")
    return spark


def _settings(master: str, conf: Mapping[str, str], folder: Path, *, verbose: bool) -> dict[str, str]:
    found = dict(_DEFAULTS)
    if master.startswith("local"):
        found |= _ON_THIS_MACHINE
        found["spark.local.dir"] = str(folder)
        found["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    logging = folder / "log4j2.properties"
    logging.write_text(_log_settings(folder, verbose=verbose), encoding="utf-8")
    options = f"-Dlog4j2.configurationFile={logging.as_uri()} {shlex.quote(f'-Djava.io.tmpdir={folder}')} {_NO_TRACE}"
    java = (_DRIVER_OPTIONS, _EXECUTOR_OPTIONS) if master.startswith("local") else (_DRIVER_OPTIONS,)
    for name in java:
        # Settings that the caller gave come last, so they win.
        found[name] = " ".join(filter(None, (found.get(name), options, conf.get(name))))
    return {**found, **{name: value for name, value in conf.items() if name not in java}}


def _log_settings(folder: Path, *, verbose: bool) -> str:
    if verbose:
        return _LOGGING.format(
            level="info", kind="console", type="Console", where="appender.console.target = SYSTEM_ERR"
        )
    where = f"appender.file.fileName = {folder / 'spark.log'}"
    return _LOGGING.format(level="error", kind="file", type="File", where=where)


def _logged(folder: Path | None) -> str:
    """The most informative line of Spark's own log."""
    try:
        text = "" if folder is None else (folder / "spark.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = (line.strip() for line in text.splitlines())
    telling = [line for line in lines if re.search(r"exception|error|failed|unable", line, re.IGNORECASE)]
    return (telling[0] if telling else "")[:300]


def check_installed() -> None:
    """Check for what a session on this machine needs; raises ``NoSpark`` or ``NoJava``."""
    _check_pyspark()
    _check_java()


def _check_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise NoSpark("PySpark is not installed", remedy="pip install 'holdfast[spark]', or use --master local")


def _check_java() -> None:
    """Check that there is a Java that is new enough; ``NoJava`` in one line otherwise."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    reported = ""
    if java is not None:
        try:
            answer = subprocess.run(
                [java, _NO_TRACE, "-version"], capture_output=True, text=True, timeout=60, check=False
            )
            reported = answer.stderr + answer.stdout
        except OSError as error:
            raise NoJava(f"Java cannot be run at {java}: {error.strerror}", remedy=_GET_JAVA) from error
    found = _VERSION.search(reported)
    if found is None:
        raise NoJava("Spark needs Java, and there is none", remedy=_GET_JAVA)
    if int(found[1]) < OLDEST_JAVA:
        raise NoJava(f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is {found[1]}", remedy=_GET_JAVA)


_GET_JAVA = (
    f"install Java {OLDEST_JAVA} or newer (such as openjdk-17-jre-headless), set JAVA_HOME, or use --master local"
)


def read_conf(text: str) -> dict[str, str]:
    """``name=value`` of ``--conf``."""
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise Invalid(f"{text!r} is no setting of Spark", remedy="write it like spark.speculation=true")
    return {name: value}


# --- Spark Connect, and masters elsewhere ---


def _connect(master: str, conf: Mapping[str, str]) -> Any:
    """A session at the server. Blocking."""
    if find_spec("grpc") is None or find_spec("grpc_status") is None:
        raise NoSpark(
            f"{master}: Spark Connect needs packages that are not installed", remedy="pip install 'pyspark[connect]'"
        )
    from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra, and slow to import
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415  # as above

    builder = SparkSession.builder.remote(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        session: Any = builder.getOrCreate()
        session.client.set_retry_policies([DefaultPolicy(max_retries=CONNECT_TRIES)])
        session.range(1).count()
    except Exception as error:  # its errors have no common base, and a server that is not there is one of many
        raise WrongMaster(f"{master}: no Spark Connect server answers ({first_line(error)})") from error
    return session


def check_reachable(master: str) -> None:
    """Check that a connection to this master can be made: Spark itself gives up only after a minute and a half. Of
    several masters one that answers is enough.
    """
    found = re.match(r"(?:spark|sc)://([^\s/;]+)", master)
    if found is None:
        return
    reported: list[str] = []
    for place in found[1].split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
        except (OSError, OverflowError, ValueError) as error:  # not listening, no such port, no such host
            reported.append(str(error))
        else:
            return
    raise WrongMaster(f"{master}: no Spark master answers there ({'; '.join(reported)})", remedy="check host and port")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
