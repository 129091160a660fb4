"""What a client raised, read once. Our own says what it knows; the rest is about obstore.

The class of its exception does not tell outcomes apart: a create that meets 412 and one that meets 409 both raise
``AlreadyExistsError``, an update of a missing key raises ``PreconditionError`` like one that lost, and a listing raises
``GenericError`` for everything. So the HTTP status and the store's own error code are read from the text. It has two
parts: a sentence that repeats the key and the server's words as they are, and, after ``Debug source:``, a dump in which
every string is quoted and escaped. Decisions rest on the dump alone, where nothing that a key or a server says can
look like a status.

What cannot be read is taken for the worst: no status, and the request may have reached the server.
"""

import html
import re
from dataclasses import dataclass
from typing import Self

from holdfast.objects.cloud.http1 import (
    CONNECTION_CLOSED,
    CONNECTION_RESET,
    CUT_OFF,
    NO_ANSWER,
    NOT_HTTP,
    Broken,
    Refused,
)

_STATUS_AND_BODY = re.compile(r'^ +status: (\d{3}),\n +body: (?:Some\(\n +)?(?:"(.*)",$)?', re.MULTILINE)
_DELETE = re.compile(r'DeleteFailed \{\n +path: "(.*)",\n +code: "(\w+)",\n +\w+: "(.*)",$', re.MULTILINE)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_KEY = re.compile(r"<Error>\s*<Key>(.*?)</Key>")
_ADDRESS = re.compile(r"^ +uri: Some\(\n +(\S+),$", re.MULTILINE)
_NEVER_SENT = re.compile(r"^ +kind: Connect,$|legacy::Error\(\n +Connect,$|^ +kind: Builder,$", re.MULTILINE)

TOO_MANY_FILES = "this process has too many files and connections open"
_REASONS = (
    ("ConnectionRefused", "connection refused"),
    ("TooManyOpenFiles", TOO_MANY_FILES),
    ("dns error", "the name is not known"),
    ("InvalidCertificate", "its certificate is not trusted"),
    ("InvalidMessage", "it does not speak TLS"),
    ("TimedOut", NO_ANSWER),
    ("IncompleteMessage", CONNECTION_CLOSED),
    ("ConnectionReset", CONNECTION_RESET),
    ("BrokenPipe", "the connection was closed"),
    ("IncompleteBody", CUT_OFF),
    ("Parse(", NOT_HTTP),
)
_LONGEST_MESSAGE = 200
_LONGEST_ERROR = 16 * 1024
"""Code and message stand at its beginning."""


@dataclass(frozen=True, slots=True)
class Failure:
    """``code`` is the store's own word, such as ``NoSuchBucket``; ``said`` what it told people."""

    error: Exception
    status: int | None
    code: str | None
    said: str
    sent: bool
    """The request may have reached a server."""
    address: str | None
    """Which URL was asked, where obstore tells."""
    key: str | None = None
    """Which of many keys the store refused, in a bulk delete."""

    @classmethod
    def read(cls, error: Exception) -> Self:
        """What was raised. One of our own client's knows by itself."""
        if isinstance(error, Refused):
            body = error.answer.body[:_LONGEST_ERROR].decode("utf-8", "replace")
            said = _plain(_first(_MESSAGE, body))
            return cls(error, error.answer.status, _first(_CODE, body), said, sent=True, address=None)
        if isinstance(error, Broken):
            return cls(error, None, None, _shortened(error.said), sent=error.sent, address=None)
        sentence, _, dump = str(error).rpartition("\n\nDebug source:\n")
        answer = _STATUS_AND_BODY.search(dump)
        if answer is not None:
            body = answer[2] or ""
            return cls(
                error=error,
                status=int(answer[1]),
                code=_first(_CODE, body),
                said=_plain(_first(_MESSAGE, body)),
                sent=True,
                address=_first(_ADDRESS, dump),
                key=_plain(_first(_KEY, body)) or None,
            )
        if refused := _DELETE.search(dump):
            key, code, said = refused[1], refused[2], _plain(refused[3])
            if code.isdigit():  # Azure
                return cls(error, int(code), None, said, sent=True, address=None, key=key)
            return cls(error, 200, code, said, sent=True, address=None, key=key)
        return cls(
            error=error,
            status=None,
            code=None,
            said=_reason(sentence, dump),
            sent=_NEVER_SENT.search(dump) is None,
            address=_first(_ADDRESS, dump),
        )


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _plain(quoted: str | None) -> str:
    """Text of the server's in one line of reasonable length, out of XML in a dumped string."""
    text = _shortened(html.unescape((quoted or "").replace("\\n", " ").replace('\\"', '"')))
    return "".join([letter if letter.isprintable() else " " for letter in text])


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "..."


def _reason(sentence: str, dump: str) -> str:
    """Why no answer came, in words."""
    below = dump.partition("HttpError {")[2]
    for mark, words in _REASONS:
        if mark in below:
            return words
    return _shortened(sentence.partition("\n")[0].rpartition(" - ")[2])
