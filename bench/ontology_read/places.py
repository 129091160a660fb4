"""Where the data lies: a folder, or an S3 server; and counts of what goes over the wire to the latter."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.objects.server import BUCKET, s3_server
from holdfast.base.config import Settings
from tests.fakes.fault_proxy import FaultProxy, in_thread

KEY_ID, SECRET, REGION = "bench", "benchbench", "us-east-1"


@dataclass(frozen=True)
class Place:
    """``endpoint`` is None for a folder."""

    folder: Path
    endpoint: str | None = None

    def uri(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}" if self.endpoint is not None else str(self.folder / name)

    @property
    def settings(self) -> Settings:
        if self.endpoint is None:
            return Settings()
        keys = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "region": REGION, "endpoint": self.endpoint}
        return Settings.model_validate({"s3": keys})

    @property
    def delta_options(self) -> dict[str, str]:
        if self.endpoint is None:
            return {}
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }

    @property
    def iceberg_options(self) -> dict[str, str]:
        if self.endpoint is None:
            return {}
        return {
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": SECRET,
            "s3.region": REGION,
            "s3.endpoint": self.endpoint,
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        }


@contextmanager
def served(folder: Path) -> Iterator[tuple[Place, Place, FaultProxy]]:
    """An S3 server: reached straight, for times, and through a proxy that counts."""
    with s3_server(folder) as address, in_thread(address) as proxy:
        yield Place(folder, address), Place(folder, proxy.endpoint), proxy
