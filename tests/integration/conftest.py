"""Servers that integration tests share. Each test gets a bucket of its own.

A test that takes ``s3_server`` runs against ministack, and once more against Ceph when ``make test-ceph`` asks for it.
"""

from collections.abc import Iterator

import pytest

from holdfast.base.ids import Ambient
from tests.integration.run_places import Place, place_for
from tests.integration.servers import S3Server, ceph_gateway, running_ministack
from tests.leftovers import adopt


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_ministack(tmp_path_factory.mktemp("ministack")) as (server, pid):
        adopt(pid)
        yield server


@pytest.fixture(scope="session", params=["ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    if request.param == "ceph":
        return ceph_gateway()
    server: S3Server = request.getfixturevalue("ministack")
    return server


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    """The name of a fresh, empty bucket."""
    name = f"test-{Ambient.system().ids.unique()}"
    s3_server.create_bucket(name)
    return name


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.soak)])
def place(request: pytest.FixtureRequest) -> Place:
    """A fresh store. The laws show that a folder and a bucket behave alike, so ``make test`` tries a domain on one."""
    return place_for(request)
