"""Sessions of Spark Connect: the server is somebody else's, and may end, be started anew, or forget a session.

Errors: ``WrongMaster`` if nobody answers, ``NoSpark`` without the packages. PySpark itself asks a server that is gone
for ten minutes; here it gives up in seconds (``TRIES``), for whoever comes next connects again.
"""

import re
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from holdfast.pipeline.errors import NoSpark, WrongMaster

ANSWER_S = 10.0
TRIES = 5
"""After the first, with four times the pause each: in all some twenty seconds."""


def is_remote(session: Any) -> bool:
    """Whether a session is one of Spark Connect: there is no context then."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def connect(master: str, conf: Mapping[str, str]) -> Any:
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
        session.client.set_retry_policies([DefaultPolicy(max_retries=TRIES)])
        session.range(1).count()
    except Exception as error:  # its errors have no common base, and a server that is not there is one of many
        raise WrongMaster(f"{master}: no Spark Connect server answers ({first_line(error)})") from error
    return session


def lost(session: Any, master: str) -> str | None:
    """What became of a session, if its server answers no more, or does not know it. Blocking."""
    from grpc import RpcError  # type: ignore[import-untyped]  # noqa: PLC0415  # an extra, untyped
    from pyspark.errors import PySparkException  # noqa: PLC0415  # an extra, and slow to import

    try:
        check_reachable(master)
        session.version  # noqa: B018  # which the server is asked for
    except WrongMaster as error:
        return str(error)
    except (PySparkException, RpcError, ValueError) as error:  # a channel that was closed is the last
        return f"its Spark Connect server has ended, or does not know it any more ({first_line(error)})"
    return None


def forget(session: Any) -> None:
    """Let go of a session that is lost: nobody is there to be told."""
    session.release_session_on_close = False
    session.stop()


def check_reachable(master: str) -> None:
    """Spark itself gives up on a master that does not answer only after a minute and a half. Of several, which stand in
    for each other, one that answers is enough.
    """
    found = re.match(r"(?:spark|sc)://([^\s/;]+)", master)
    if found is None:
        return
    told: list[str] = []
    for place in found[1].split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
        except (OSError, OverflowError, ValueError) as error:  # nobody, a port beyond all ports, no name of a host
            told.append(str(error))
        else:
            return
    raise WrongMaster(f"{master}: nobody answers there ({'; '.join(told)})", remedy="check host and port")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
