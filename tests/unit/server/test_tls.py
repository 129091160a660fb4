"""Certificates are looked at while a collector runs, and a pair that cannot be used changes nothing."""

import shutil
import ssl
from pathlib import Path

from holdfast.server.certificates import Certificates
from tests.tidy.tree import ROOT

TLS = ROOT / "tests/golden/tls"


async def test_a_new_pair_is_used_once_it_is_whole(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    used: list[ssl.SSLContext] = []

    def load() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context

    def place(name: str, path: Path) -> None:
        shutil.copy(TLS / name, tmp_path / "aside")
        (tmp_path / "aside").replace(path)

    place("certificate.pem", certificate)
    place("key.pem", key)
    certificates = Certificates((certificate, key), load, used.append)
    assert await certificates.refresh()  # it may have changed since it was read first
    assert not await certificates.refresh()
    place("second-certificate.pem", certificate)
    assert not await certificates.refresh()
    key.unlink()
    assert not await certificates.refresh()
    assert len(used) == 1
    place("second-key.pem", key)
    assert await certificates.refresh()
    assert len(used) == 2
