"""Real S3 servers for tests, and a witness that speaks to them without our code.

ministack starts in a moment and runs in every test run, on a free loopback port. A Ceph gateway is started by
``make test-ceph``, which tells its address in the environment.
"""

import hashlib
import hmac
import http.client
import os
import socket
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree as ET

from obstore.store import AzureStore

from holdfast.objects.uri import StoreSpec

if TYPE_CHECKING:  # obstore's typed dictionaries exist for type checkers only
    from obstore.store import AzureConfig

_START_SECONDS = 30
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@dataclass(frozen=True)
class S3Server:
    """Where a server listens, and the keys that it accepts."""

    endpoint: str
    access_key: str
    secret_key: str

    def target(self, bucket: str, prefix: str = "", **options: str) -> StoreSpec:
        return StoreSpec(
            "s3",
            bucket,
            prefix,
            (("endpoint", self.endpoint), *options.items()),
            (("access_key_id", self.access_key), ("secret_access_key", self.secret_key)),
        )

    def create_bucket(self, name: str) -> None:
        self._ask("PUT", f"/{name}")

    def put_about(self, bucket: str, what: str, body: bytes) -> None:
        """A setting of a bucket, such as its policy."""
        self._ask("PUT", f"/{bucket}", {what: ""}, body)

    def put(self, bucket: str, key: str, body: bytes = b"") -> None:
        self._ask("PUT", f"/{bucket}/{quote(key, safe='/~')}", body=body)

    def get(self, bucket: str, key: str) -> bytes:
        return self._ask("GET", f"/{bucket}/{quote(key, safe='/~')}")

    def keys(self, bucket: str) -> list[str]:
        """Every key in the bucket, byte for byte, in the server's order."""
        found: list[str] = []
        token = ""
        while True:
            query = {"list-type": "2", "encoding-type": "url"} | ({"continuation-token": token} if token else {})
            page = ET.fromstring(self._ask("GET", f"/{bucket}", query))
            encoded = page.findtext(f"{_XML}EncodingType") == "url"
            names = [node.text or "" for node in page.iter(f"{_XML}Key")]
            found += [unquote(name.replace("+", " ")) if encoded else name for name in names]
            token = page.findtext(f"{_XML}NextContinuationToken") or ""
            if page.findtext(f"{_XML}IsTruncated") != "true":
                return found

    def _ask(self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
        pairs = "&".join(f"{name}={quote(value, safe='~')}" for name, value in sorted((query or {}).items()))
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc)
        try:
            connection.request(method, f"{path}?{pairs}", body, self._signed(method, path, pairs, body))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status not in (200, 204):
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return content

    def _signed(self, method: str, path: str, query: str, body: bytes) -> dict[str, str]:
        """AWS signature version 4."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": urlsplit(self.endpoint).netloc, "x-amz-content-sha256": digest, "x-amz-date": now}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{digest}"
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = f"AWS4{self.secret_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"Credential={self.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "authorization": f"AWS4-HMAC-SHA256 {credential}"}


@dataclass(frozen=True)
class Azurite:
    """Microsoft's emulator of Azure Blob Storage, which ``make test-azure`` starts. Account and key are public."""

    endpoint: str
    account: ClassVar[str] = "devstoreaccount1"
    key: ClassVar[str] = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def client(self, container: str) -> AzureStore:
        """obstore's own client, as a witness."""
        config: AzureConfig = {"account_name": self.account, "account_key": self.key, "endpoint": self.endpoint}
        return AzureStore(container, config=config, client_options={"allow_http": True})

    def create_container(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        address = urlsplit(self.endpoint)
        path = f"{address.path}/{name}"
        lines = f"x-ms-date:{now}\nx-ms-version:2021-12-02\n/{self.account}{path}\nrestype:container"
        signature = b64encode(hmac.digest(b64decode(self.key), f"PUT{12 * chr(10)}{lines}".encode(), "sha256")).decode()
        headers = {
            "x-ms-date": now,
            "x-ms-version": "2021-12-02",
            "authorization": f"SharedKey {self.account}:{signature}",
            "content-length": "0",
        }
        connection = http.client.HTTPConnection(address.netloc)
        try:
            connection.request("PUT", f"{path}?restype=container", headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 201:
            raise RuntimeError(f"create {name}: {answer.status} {content[:500]!r}")


@contextmanager
def running_ministack(folder: Path) -> Iterator[tuple[S3Server, int]]:
    """A fresh, empty ministack and its pid. ``folder`` takes its log; it keeps nothing else on disk."""
    port = free_port()
    environ = {
        **os.environ,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    log = folder / "ministack.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ministack"], env=environ, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_listening(process, port, log)
        yield S3Server(f"http://127.0.0.1:{port}", "test", "test"), process.pid
    finally:
        process.kill()
        process.wait()


def ceph_gateway() -> S3Server:
    """The gateway that ``make test-ceph`` has started."""
    return S3Server(
        os.environ["HOLDFAST_CEPH_ENDPOINT"],
        os.environ["HOLDFAST_CEPH_ACCESS_KEY"],
        os.environ["HOLDFAST_CEPH_SECRET_KEY"],
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"ministack did not come up:\n{log.read_text(errors='replace')[-2000:]}")
