"""Certificates that are replaced while a collector runs: new connections get the new one, and no other is cut off.

The files are looked at every second, as tokens are. A pair that cannot be used (one file of two is replaced yet, or is
torn) leaves the old certificate in place, is said once, and is tried again when a file has changed.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from pathlib import Path

from holdfast.base.aio import blocking
from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.base.telemetry import logger

EVERY_S = 1.0
_CERTIFICATE = re.compile(rb"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----")
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_MISMATCHES = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}
_log = logger("server")

_Looks = tuple[tuple[int, int, int] | None, ...]


class Certificates:
    def __init__(
        self, paths: tuple[Path, ...], load: Callable[[], ssl.SSLContext], use: Callable[[ssl.SSLContext], None]
    ) -> None:
        """``load`` reads the files at ``paths``, which were read once already; ``use`` is given what came of it."""
        self._paths = paths
        self._load = load
        self._use = use
        self._seen: _Looks | None = None
        """What the files looked like; not known of those that were read at the start."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.refresh()

    async def refresh(self) -> bool:
        """Whether the certificate was read anew."""
        found, before = await blocking(self._look), self._seen
        if found == before:
            return False
        self._seen = found
        try:
            context = await blocking(self._load)
        except (OSError, HoldfastError) as error:  # the first: also what ssl raises
            _log.error("%s: changed, and cannot be used; the old certificate stays: %s", self._paths[0], error)
            return False
        self._use(context)
        if before is not None:
            _log.info("%s: new connections get the new certificate", self._paths[0])
        return True

    def _look(self) -> _Looks:
        return tuple(_looks(path) for path in self._paths)


def _looks(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def check_pair(certificate: Path, key: Path | None) -> None:
    """Whether TLS can be spoken with these files, in words where ssl has none; ``key`` is None if it is in the same."""
    chain = _read("--tls-certificate", certificate)
    if _CERTIFICATE.search(chain) is None:
        raise Invalid(
            f"--tls-certificate {certificate}: there is no certificate in it",
            remedy="name a chain of certificates in PEM",
        )
    if key is None and _KEY.search(chain) is None:
        raise Invalid(
            f"--tls-certificate {certificate}: there is a certificate in it, and no key",
            remedy="name the file of its key with --tls-key",
        )
    if key is not None and _KEY.search(_read("--tls-key", key)) is None:
        raise Invalid(f"--tls-key {key}: there is no private key in it", remedy="name the certificate's key in PEM")
    holder = f"--tls-certificate {certificate}" if key is None else f"--tls-key {key}"

    def ask() -> str:
        raise Invalid(
            f"{holder}: the key is encrypted, and nobody is there to give its password",
            remedy="keep it plain in a file that only the collector can read: openssl pkey -in KEY -out PLAIN",
        )

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=ask)
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            raise Invalid(
                f"{holder}: it is the key of another certificate than the first one in {certificate}",
                remedy="name a certificate and its own key; in a chain the certificate itself comes first",
            ) from error
        raise Invalid(
            f"{holder if _can_be_read(certificate) else f'--tls-certificate {certificate}'}: what is in it is damaged",
            remedy="name a file that `openssl x509`, or for a key `openssl pkey`, can read",
        ) from error


def _can_be_read(certificate: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except OSError:  # also what ssl raises
        return False
    return True


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{option} {path}: there is no such file", remedy="name a PEM file") from error
    except OSError as error:
        raise Invalid(
            f"{option} {path}: cannot be read: {error.strerror}", remedy="name a PEM file that this process may read"
        ) from error
