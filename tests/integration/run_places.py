"""Stores for tests of runs: opened by their address, and looked at without our code."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import holdfast
from holdfast import objects
from holdfast.base.config import RetrySection, S3Section, Settings
from holdfast.base.ids import Ambient
from holdfast.objects.memory import MemoryStore
from holdfast.objects.open import backend
from holdfast.objects.store import content_version
from holdfast.objects.uri import StoreSpec
from tests.integration.servers import S3Server


@dataclass(frozen=True)
class Place:
    uri: str
    get: Callable[[str], bytes]
    """The bytes under a key, as they lie there."""
    put: Callable[[str, bytes], None]
    keys: Callable[[], list[str]]
    settings: Settings = field(default_factory=Settings)

    def open(self) -> AbstractAsyncContextManager[objects.Client]:
        return objects.open(self.uri, settings=self.settings)

    def connect(self) -> AbstractContextManager[Any]:
        return holdfast.connect(self.uri, settings=self.settings)

    def contents(self) -> dict[str, bytes]:
        return {key: self.get(key) for key in self.keys()}

    @property
    def environ(self) -> dict[str, str]:
        """What another process needs besides the address."""
        s3 = self.settings.s3
        if s3.secret_access_key is None:
            return {}
        return {
            "HOLDFAST_S3__ACCESS_KEY_ID": str(s3.access_key_id),
            "HOLDFAST_S3__SECRET_ACCESS_KEY": s3.secret_access_key.get_secret_value(),
            "HOLDFAST_S3__REGION": str(s3.region),
        }


def place_for(request: pytest.FixtureRequest) -> Place:
    """A fresh, empty store of the kind that the fixture's parameter names: memory, file or s3."""
    if request.param == "memory":
        return memory()
    if request.param == "file":
        return folder(request.getfixturevalue("tmp_path") / "store")
    return s3(request.getfixturevalue("ministack"))


def memory() -> Place:
    uri = f"memory:{Ambient.system().ids.unique()}"
    store = backend(StoreSpec.parse(uri))
    assert isinstance(store, MemoryStore)
    shelf = store.shelf

    def put(key: str, body: bytes) -> None:
        shelf.place(objects.Object(key, body, 0, content_version(body)))

    return Place(uri, lambda key: shelf.objects[key].body, put, lambda: sorted(shelf.objects))


def folder(root: Path) -> Place:
    def put(key: str, body: bytes) -> None:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(body)

    return Place(f"file:{root}", lambda key: (root / key).read_bytes(), put, lambda: sorted(_files(root)))


def _files(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        inner = path.relative_to(root)
        if path.is_file() and not inner.parts[0].startswith(".%"):
            yield str(inner)


def s3(server: S3Server, endpoint: str | None = None) -> Place:
    """A fresh bucket; clients reach it at ``endpoint``, where that is not the server's own."""
    bucket = f"runs-{Ambient.system().ids.unique()}"
    server.create_bucket(bucket)
    section = S3Section(
        access_key_id=server.access_key, secret_access_key=SecretStr(server.secret_key), region="us-east-1"
    )
    return Place(
        f"s3://{bucket}?endpoint={endpoint or server.endpoint}",
        lambda key: server.get(bucket, key),
        lambda key, body: server.put(bucket, key, body),
        lambda: server.keys(bucket),
        Settings(s3=section, retry=RetrySection(attempts=30, base_ms=1, max_ms=10)),
    )
