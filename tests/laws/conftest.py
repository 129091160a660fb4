"""The stores that every law is run on."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from holdfast.base.config import S3Section, Settings
from holdfast.objects.uri import StoreSpec
from tests.integration.servers import S3Server, running_ministack
from tests.leftovers import adopt

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_ministack(tmp_path_factory.mktemp("laws-ministack")) as (server, pid):
        adopt(pid)
        yield server


@pytest.fixture
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSpec:
    """An empty store of the kind that the test is parametrised with: memory, local or s3."""
    kind = request.param
    if kind == "memory":
        return StoreSpec.parse("memory:")
    if kind == "local":
        return StoreSpec.parse(f"file:{tmp_path / 'store'}")
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = f"laws-{next(_numbers)}"
    server.create_bucket(bucket)
    keys = S3Section(access_key_id=server.access_key, secret_access_key=SecretStr(server.secret_key))
    return StoreSpec.parse(f"s3://{bucket}/laws?endpoint={server.endpoint}&region=us-east-1", Settings(s3=keys))
