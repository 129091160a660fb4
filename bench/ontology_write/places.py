"""Where the contenders write: a bucket of the counted S3 server, or a folder; each of them has a place of its own."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from holdfast.base.config import Settings

KEY_ID, SECRET, REGION = "bench", "benchbench", "us-east-1"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a place has seen so far."""

    requests: int = 0
    uploaded: int = 0
    downloaded: int = 0

    def since(self, before: "Cost") -> "Cost":
        return Cost(
            self.requests - before.requests, self.uploaded - before.uploaded, self.downloaded - before.downloaded
        )


class Place(ABC):
    uri: str
    scratch: Path
    """A folder for what is not in the store: a catalog, for one who needs it."""
    settings: Settings
    delta_options: Mapping[str, str]
    iceberg_options: Mapping[str, str]

    @abstractmethod
    def cost(self) -> Cost: ...

    @abstractmethod
    def unsynced(self) -> list[Path]:
        """Files that a crash of the machine could undo, though they were said to be written."""


class Bucket(Place):
    def __init__(self, address: str, name: str, scratch: Path) -> None:
        self.uri = f"s3://{name}/table"
        self.scratch = scratch
        self._address, self._name = address, name
        keys = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "region": REGION, "endpoint": address}
        self.settings = Settings.model_validate({"s3": keys})
        self.delta_options = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "aws_conditional_put": "etag",
        }
        self.iceberg_options = {
            "s3.endpoint": address,
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": SECRET,
            "s3.region": REGION,
        }

    def cost(self) -> Cost:
        found: dict[str, Any] = httpx.get(f"{self._address}/-/counts").json().get(self._name, {})
        requests = sum(count for name, count in found.items() if name.isupper())
        return Cost(requests, found.get("received", 0), found.get("sent", 0))

    def unsynced(self) -> list[Path]:
        return []  # what a server has acknowledged is its own affair


class Folder(Place):
    def __init__(self, folder: Path, name: str, scratch: Path) -> None:
        path = folder / name
        path.mkdir()
        self.uri = f"file://{path}"
        self.scratch = scratch
        self.settings, self.delta_options, self.iceberg_options = Settings(), {}, {}
        self._path = path
        self._known: set[Path] = set()

    def cost(self) -> Cost:
        """Of what is there now: the growth of a folder, not what was written to it."""
        return Cost(uploaded=sum(path.stat().st_size for path in self._files()))

    def unsynced(self) -> list[Path]:
        new = [path for path in self._files() if path not in self._known]
        self._known.update(new)
        return new

    def _files(self) -> list[Path]:
        return [Path(folder, name) for folder, _, names in os.walk(self._path) for name in names]


def sync(files: list[Path]) -> None:
    """As we do it ourselves: file by file, then the folders that name them."""
    for path in [*files, *{path.parent for path in files}]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def delay(address: str, milliseconds: int) -> None:
    """From now on the server answers so much later."""
    httpx.put(f"{address}/-/delay/{milliseconds}").raise_for_status()
