"""One Spark for all tests here: its start is paid once, and its JVM ends with the run. And an S3 server, as in
integration."""

from collections.abc import Callable, Iterator

import pytest

from holdfast.objects.spec import StoreSpec
from holdfast.pipeline.session import Spark, start
from holdfast.pipeline.spark import SparkEngine
from tests.integration.conftest import bucket, ministack, s3_server
from tests.leftovers import adopt

__all__ = ["bucket", "ministack", "s3_server"]

Engines = Callable[[StoreSpec], SparkEngine]


@pytest.fixture(scope="session")
def spark(private_temporary_folder: None) -> Iterator[Spark]:
    started = start("local[2]")
    adopt(started.session.sparkContext._gateway.proc.pid)
    yield started
    started.stop()


@pytest.fixture
def engine(spark: Spark) -> Engines:
    """An engine over the shared session, for a store."""
    return lambda spec: SparkEngine(spark, spec)
