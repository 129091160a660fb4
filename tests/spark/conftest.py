"""One Spark for all tests here, with a Spark Connect server in it: its start is paid once, and its JVM ends with the
run. And an S3 server, as in integration."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.base.config import Settings, load
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine.session import Spark, start
from holdfast.pipeline.engine.spark import SparkEngine
from tests.integration.conftest import bucket, ministack, s3_server
from tests.integration.servers import S3Server
from tests.leftovers import adopt
from tests.spark.readings import PYTHONPATH

__all__ = ["bucket", "ministack", "s3_server"]

Engines = Callable[[StoreSpec], SparkEngine]
CONNECT = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


@pytest.fixture(scope="session")
def home(spark: Spark) -> Path:
    """The working folder of the session, and of its workers."""
    return Path(spark.session.sparkContext._jvm.java.lang.System.getProperty("user.dir"))


@pytest.fixture(scope="session")
def spark(private_temporary_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with pytest.MonkeyPatch.context() as around:
        around.chdir(tmp_path_factory.mktemp("home"))
        around.setenv("PYTHONPATH", PYTHONPATH)
        started = start("local[2]", CONNECT)
    # A cluster of tests may have JVMs here, too.
    jvm = next(each for each in psutil.Process().children() if "pyspark-shell" in each.cmdline())
    adopt(jvm.pid)
    yield started
    started.stop()
    jvm.kill()  # it would end with this process, and its folder too
    jvm.wait()
    assert started.folder is not None
    shutil.rmtree(started.folder)


@pytest.fixture
def connect(spark: Spark) -> str:
    """The address of the Spark Connect server, which lives in the same JVM."""
    return f"sc://127.0.0.1:{_connect_service(spark).localPort()}"


def forget_sessions(spark: Spark) -> None:
    """As a server does that ends, and is started again at the same address."""
    _connect_service(spark).sessionManager().invalidateAllSessions()


def _connect_service(spark: Spark) -> Any:
    services = spark.session.sparkContext._jvm.org.apache.spark.sql.connect.service
    return getattr(getattr(services, "SparkConnectService$"), "MODULE$")  # what Scala calls an object


@dataclass(frozen=True)
class OnS3:
    uri: str
    settings: Settings
    config: Path
    """A settings file that says the same, and where the secret is."""


@pytest.fixture
def on_s3(s3_server: S3Server, bucket: str, tmp_path: Path) -> OnS3:
    """A store that is reached with keys which no process of Spark has."""
    config, secret = tmp_path / "holdfast.toml", tmp_path / "secret"
    secret.write_text(s3_server.secret_key)
    config.write_text(
        f'[s3]\nendpoint = "{s3_server.endpoint}"\nregion = "us-east-1"\nallow_http = true\n'
        f'access_key_id = "{s3_server.access_key}"\nsecret_access_key_file = "{secret}"\n'
    )
    return OnS3(f"s3://{bucket}/some/prefix", load(config=config), config)


@pytest.fixture
def engine(spark: Spark) -> Engines:
    """An engine over the shared session, for a store."""
    return lambda spec: SparkEngine(spark, spec)


@pytest.fixture
def without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """No query is small, so Spark runs all of them."""
    monkeypatch.setattr("holdfast.pipeline.engine.spark.SMALL_BYTES", 0)
