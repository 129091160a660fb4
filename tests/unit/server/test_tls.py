"""A certificate is replaced while a collector runs, and a pair that cannot be used changes nothing."""

import shutil
import ssl
from pathlib import Path

from holdfast.server.tls import Certificate
from tests.tidy.tree import ROOT

TLS = ROOT / "tests/golden/tls"


async def test_a_new_pair_is_used_once_both_files_are_replaced(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    used: list[ssl.SSLContext] = []

    def place(name: str, path: Path) -> None:
        shutil.copy(TLS / name, tmp_path / "aside")
        (tmp_path / "aside").replace(path)

    place("certificate.pem", certificate)
    place("key.pem", key)
    watched = Certificate(certificate, key, used.append)
    await watched.load()
    assert not await watched.refresh()
    place("second-certificate.pem", certificate)
    assert not await watched.refresh()
    key.unlink()
    assert not await watched.refresh()
    assert len(used) == 1
    place("second-key.pem", key)
    assert await watched.refresh()
    assert len(set(used)) == 2
