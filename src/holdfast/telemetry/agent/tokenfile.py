"""A token in a file, for whoever sends. Tokens are replaced while agents run, so the file is looked at again.

``Invalid`` if the file cannot be used when it is first read; after that the last good token stays.
"""

from contextlib import suppress
from pathlib import Path

from holdfast.base.errors import Invalid


class TokenSource:
    """The token in a file, read again when the file changes. Once it was read, a file that is gone changes nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._token = ""
        try:
            self._read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise Invalid(
                f"token file {path} cannot be read: {reason}",
                remedy="name a readable file that holds the token and nothing else",
            ) from error

    def __call__(self) -> str:
        with suppress(OSError, UnicodeDecodeError, Invalid):
            self._read()
        return self._token

    def _read(self) -> None:
        found = self._path.stat()
        if self._seen == (found.st_mtime_ns, found.st_ino):
            return
        self._token = check_token(self._path.read_text(encoding="utf-8"), f"token file {self._path}")
        self._seen = (found.st_mtime_ns, found.st_ino)


def check_token(text: str, source: str, remedy: str = "put the token into it, and nothing else") -> str:
    """The token in ``text``, which may end with a line feed. No error shows it: it may be a secret all the same."""
    token = text.strip()
    if not token:
        raise Invalid(f"{source} is empty", remedy=remedy)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid(f"{source} is no token: it has spaces, or characters that no token has", remedy=remedy)
    return token
