"""Which collectors a sender speaks to: their addresses, and the certificates that it trusts."""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.base.errors import Invalid
from holdfast.objects.uri import shown


def check_url(url: str, option: str = "") -> str:
    """The address of a collector, without a slash at its end. ``option`` says where it was given."""
    if not _is_address(url):
        raise Invalid(f"{option}{shown(url)!r} is no address of a collector", remedy="write https://host:port")
    return url.rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        there = bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        return False
    return there and parts.scheme in ("http", "https") and not (parts.query or parts.fragment or parts.username)


def trusting(path: Path, source: str) -> ssl.SSLContext:
    """Trusts the certificates in this file or folder, and no others."""
    remedy = "name a file that holds the certificate of the CA in PEM"
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise Invalid(f"{source} {path}: there is no certificate in it", remedy=remedy) from error
    except OSError as error:
        raise Invalid(f"{source} {path}: cannot be read: {error.strerror}", remedy=remedy) from error
