"""TLS of a collector: its certificate, which may be replaced while it runs.

The files are checked every second. When they change, a new context is built from them for new connections; open
connections are not interrupted. If the new pair cannot be loaded (only one of the two files was replaced yet, or it is
damaged), the current certificate stays in use, an error is logged, and loading is tried again at the next change.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from pathlib import Path

from holdfast.base.aio import blocking
from holdfast.base.drafts import Stamp, stamp
from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.base.telemetry import logger

EVERY_S = 1.0
_CERTIFICATE = re.compile(rb"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----")
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_MISMATCHES = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}
_log = logger("server")


class Certificate:
    """Calls ``use`` with every new context. ``key`` is None if the file of the certificate contains the key."""

    def __init__(self, certificate: Path, key: Path | None, use: Callable[[ssl.SSLContext], None]) -> None:
        self._certificate = certificate
        self._key = key
        self._use = use
        self._loaded: tuple[Stamp, ...] | None = None

    async def load(self) -> None:
        """Load the files at the start, when a problem is an error."""
        self._loaded = await blocking(self._stamp)
        self._use(await blocking(server_context, self._certificate, self._key))

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.refresh()

    async def refresh(self) -> bool:
        """Whether a new pair was loaded."""
        stamp = await blocking(self._stamp)
        if stamp == self._loaded:
            return False
        self._loaded = stamp
        try:
            context = await blocking(server_context, self._certificate, self._key)
        except (OSError, HoldfastError) as error:
            _log.error("the changed certificate cannot be used, and the current one stays in use: %s", error)
            return False
        self._use(context)
        _log.info("%s: new connections use the new certificate", self._certificate)
        return True

    def _stamp(self) -> tuple[Stamp, ...]:
        return tuple(stamp(path) for path in (self._certificate, self._key) if path is not None)


def server_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """A context with these files. The errors of ssl do not say which file is wrong, so the files are checked first."""
    chain = _read("--tls-certificate", certificate)
    if _CERTIFICATE.search(chain) is None:
        raise Invalid(
            f"--tls-certificate {certificate}: it contains no certificate",
            remedy="name a chain of certificates in PEM",
        )
    if key is None and _KEY.search(chain) is None:
        raise Invalid(
            f"--tls-certificate {certificate}: it contains a certificate but no key",
            remedy="name the file of its key with --tls-key",
        )
    if key is not None and _KEY.search(_read("--tls-key", key)) is None:
        raise Invalid(f"--tls-key {key}: it contains no private key", remedy="name the certificate's key in PEM")
    key_file = f"--tls-certificate {certificate}" if key is None else f"--tls-key {key}"

    def ask() -> str:
        raise Invalid(
            f"{key_file}: the key is encrypted, and a collector cannot ask for its password",
            remedy="decrypt it into a file that only the collector can read: openssl pkey -in KEY -out PLAIN",
        )

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=ask)
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            raise Invalid(
                f"{key_file}: it is not the key of the first certificate in {certificate}",
                remedy="name a certificate and its own key; in a chain the certificate itself comes first",
            ) from error
        damaged = key_file if _is_certificate(certificate) else f"--tls-certificate {certificate}"
        raise Invalid(
            f"{damaged}: its content is damaged",
            remedy="name a file that `openssl x509`, or for a key `openssl pkey`, can read",
        ) from error
    return context


def _is_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:  # includes ssl.SSLError
        return False
    return True


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{option} {path}: the file does not exist", remedy="name a PEM file") from error
    except OSError as error:
        raise Invalid(
            f"{option} {path}: cannot be read: {error.strerror}", remedy="name a PEM file that this process may read"
        ) from error
