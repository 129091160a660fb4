"""From an exception of obstore to an error of the port.

    answer of the server                          on a write       on a read
    ---------------------------------------------------------------------------------------------
    412; 404 on if-match; BlobAlreadyExists       Lost             -
    409                                           Contended        Contended
    404, bucket, container or account             NoBucket         NoBucket
    404                                           NoBucket         NotFound
    401, 403, an expired token                    Denied           Denied
    429, SlowDown, ServerBusy                     Unavailable      Unavailable
    408, 5xx, no answer, half an answer           Unavailable, *   Unavailable
    not connected                                 Unavailable      Unavailable
    a redirect that obstore does not follow       Invalid          Invalid
    any other status                              Invalid          Invalid

``*`` is ``maybe_applied``: the write may have had an effect. A failure that cannot be classified counts as such.
A race is ``Lost`` only if the store answered that the condition does not hold; a 409 proves nothing.

The class of obstore's exception does not distinguish outcomes: a create that is answered 412 and one that is answered
409 both raise ``AlreadyExistsError``, an update of a missing key raises ``PreconditionError`` like one that lost, and a
listing raises ``GenericError`` for everything. So ``Failure.read`` parses the text. It has two parts: a sentence that
quotes the key and the server's message unchanged, and, after ``Debug source:``, a dump in which every string is quoted
and escaped. Only the dump is evaluated, because a key or a server cannot forge a status in it. obstore does not promise
this format, so its version is bounded, and tests on scripted answers pin it.
"""

import html
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, urlsplit

from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, PreconditionError

from holdfast.base.errors import Contended, Denied, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.objects.store import NO_SUCH_OBJECT, Addressed, Create, IfMatch

RAISED = (BaseError, OSError)
"""The exceptions that calls of obstore raise."""

_STATUS_AND_BODY = re.compile(r'^ +status: (\d{3}),\n +body: (?:Some\(\n +)?(?:"(.*)",$)?', re.MULTILINE)
_DELETE = re.compile(r'DeleteFailed \{\n +path: "(.*)",\n +code: "(\w+)",\n +\w+: "(.*)",$', re.MULTILINE)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_KEY = re.compile(r"<Error>\s*<Key>(.*?)</Key>")
_ADDRESS = re.compile(r"^ +uri: Some\(\n +(\S+),$", re.MULTILINE)
_NEVER_SENT = re.compile(r"^ +kind: Connect,$|legacy::Error\(\n +Connect,$|^ +kind: Builder,$", re.MULTILINE)
_PAST_END = re.compile(r"^ +StartTooLarge \{$|^ +source: StartTooLarge \{$", re.MULTILINE)

_TOO_MANY_FILES = "this process has too many files and connections open"
_REASONS = (
    ("ConnectionRefused", "connection refused"),
    ("TooManyOpenFiles", _TOO_MANY_FILES),
    ("dns error", "the host name is not known"),
    ("InvalidCertificate", "its certificate is not trusted"),
    ("InvalidMessage", "it does not speak TLS"),
    ("TimedOut", "no answer in time"),
    ("IncompleteMessage", "the connection was closed before the answer"),
    ("ConnectionReset", "the connection was reset"),
    ("BrokenPipe", "the connection was closed"),
    ("IncompleteBody", "the answer was cut off"),
    ("Parse(", "the answer is not HTTP"),
)
_MESSAGE_CHARACTERS = 200

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ResourceNotFound", "AccountNotFound"}
_NO_OBJECT = {"NoSuchKey", "BlobNotFound"}
_BAD_CREDENTIALS = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"}
_OVERLOADED = {"SlowDown", "ServerBusy", "TooManyRequests"}
_WRONG_REGION = "Received redirect without LOCATION"


class NoBucket(Invalid):
    """The bucket does not exist. Not a ``NotFound``: ``find`` would take a misspelt bucket for a missing object."""

    kind = "not_found"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket and its server, for messages. ``credentials`` names the identity, ``remedy`` where to put another."""

    scheme: str
    name: str
    endpoint: str
    credentials: str
    remedy: str

    def uri(self, key: str = "") -> str:
        return f"{self.scheme}://{self.name}/{key}" if key else f"{self.scheme}://{self.name}"

    def answered(self, failure: "Failure") -> bool:
        """Whether the failed request was sent to the store, and not to a service that issues credentials."""
        address = failure.address
        if address is None:
            return True
        sent, server = urlsplit(address), urlsplit(self.endpoint)
        if sent.hostname == f"{self.name.lower()}.{server.hostname}":  # the bucket in the host name
            return True
        return _origin(sent) == _origin(server) and sent.path.startswith(server.path)


@dataclass(frozen=True, slots=True)
class Failure:
    """The parsed text of an exception. ``code`` is the store's error code, ``message`` its explanation."""

    error: Exception
    status: int | None
    code: str | None
    message: str
    sent: bool
    """The request may have reached a server."""
    address: str | None = None
    """The URL of the request, where obstore reports it."""
    key: str | None = None
    """The key that was refused, in a delete."""

    @classmethod
    def read(cls, error: Exception) -> Self:
        sentence, _, dump = str(error).rpartition("\n\nDebug source:\n")
        address = _first(_ADDRESS, dump)
        if answer := _STATUS_AND_BODY.search(dump):
            body = answer[2] or ""
            message, key = _plain(_first(_MESSAGE, body)), _plain(_first(_KEY, body)) or None
            return cls(error, int(answer[1]), _first(_CODE, body), message, sent=True, address=address, key=key)
        if refused := _DELETE.search(dump):
            key, code, message = refused[1], refused[2], _plain(refused[3])
            if not code.isdigit():
                return cls(error, 200, code, message, sent=True, key=key)
            # Azure reports a status and a sentence for each blob, and no error code.
            missing_container = code == "404" and "container" in message
            return cls(error, int(code), "ContainerNotFound" if missing_container else None, message, True, key=key)
        if _PAST_END.search(dump):
            return cls(error, 416, None, "the range starts past the end", sent=True)
        sent = _NEVER_SENT.search(dump) is None
        return cls(error, None, None, _reason(sentence, dump), sent, address=address)


def is_lost(failure: Failure, bucket: Bucket, mode: Create | Addressed | IfMatch) -> bool:
    """Whether the store answered that the condition of a write does not hold."""
    if not bucket.answered(failure):
        return False
    if failure.status is None:
        return isinstance(failure.error, PreconditionError)
    if failure.status == 404:
        return isinstance(mode, IfMatch) and failure.code not in _NO_BUCKET
    # If the object exists, Azure answers a create with 409 and this code, and some servers with 304.
    return failure.status in (412, 304) or (failure.status == 409 and failure.code == "BlobAlreadyExists")


def is_missing(failure: Failure) -> bool:
    """Whether a delete found no object. S3 does not report it; the others do, Azure without a code."""
    if failure.code in _NO_OBJECT:
        return True
    return failure.status == 404 and failure.key is not None and failure.code not in _NO_BUCKET


def explain(failure: Failure, bucket: Bucket, key: str, *, writing: bool) -> HoldfastError:
    """The error to raise. ``key`` is the full one, with the store's prefix; empty for a listing of everything."""
    if not bucket.answered(failure):
        return _no_credentials(failure, bucket)
    if failure.status is None:
        return _without_answer(failure, bucket, key, writing=writing)
    return _refused(failure, bucket, key, writing=writing)


def _no_credentials(failure: Failure, bucket: Bucket) -> HoldfastError:
    """No keys are configured, and the service that issues credentials returned none."""
    what = f"{bucket.uri()}: no credentials were found, and {bucket.credentials} could not be fetched"
    if not failure.sent or (failure.status or 500) < 500:
        return Denied(what, remedy=bucket.remedy)
    return Unavailable(f"{what} ({_summary(failure)})")


def _without_answer(failure: Failure, bucket: Bucket, key: str, *, writing: bool) -> HoldfastError:
    uri = bucket.uri(key)
    if isinstance(failure.error, AlreadyExistsError):
        return Contended(f"{uri}: another writer was active at the same time")
    if isinstance(failure.error, FileNotFoundError):
        return NotFound(f"{uri}: no such object", remedy=NO_SUCH_OBJECT)
    if isinstance(failure.error, InvalidPathError):
        return Invalid(
            f"{bucket.uri()}: contains a key that Holdfast cannot have written ({failure.message})",
            remedy="give Holdfast a bucket or a prefix of its own",
        )
    if _WRONG_REGION in failure.message:
        return _redirected(bucket)
    if not failure.sent:
        remedy = "check the endpoint, and that the server is running"
        if failure.message == _TOO_MANY_FILES:
            remedy = "lower requests_in_flight, or raise the limit of open files (ulimit -n)"
        return Unavailable(f"{uri}: cannot connect to {bucket.endpoint}: {failure.message}", remedy=remedy)
    return Unavailable(f"{uri}: no usable answer from {bucket.endpoint}: {failure.message}", maybe_applied=writing)


def _redirected(bucket: Bucket) -> Invalid:
    return Invalid(
        f"{bucket.uri()}: {bucket.endpoint} answers with a redirect: the bucket is in another region",
        remedy="set region to the region of the bucket, or endpoint to its server",
    )


def _refused(failure: Failure, bucket: Bucket, key: str, *, writing: bool) -> HoldfastError:
    uri, summary = bucket.uri(key), _summary(failure)
    status, code = failure.status or 0, failure.code
    if status in (301, 302, 307, 308):
        return _redirected(bucket)
    if status == 404 and (writing or code in _NO_BUCKET):
        what, check = ("container, or no such account,", "account") if bucket.scheme == "az" else ("bucket", "endpoint")
        return NoBucket(
            f"{bucket.uri()}: no such {what} at {bucket.endpoint}",
            remedy=f"create the {what.partition(',')[0]}, or check its name and the {check}",
        )
    if status == 404:
        return NotFound(f"{uri}: no such object", remedy=NO_SUCH_OBJECT)
    if status == 409:
        return Contended(f"{uri}: another writer was active at the same time ({summary})")
    if status in (401, 403) or code in _BAD_CREDENTIALS or code == "AccessDenied":
        return Denied(
            f"{uri}: {bucket.endpoint} refused access ({summary}) with {bucket.credentials}",
            remedy="check these credentials and their permissions: read, write, delete, and list "
            "(without the permission to list, a missing object is answered 403)",
        )
    if status == 429 or code in _OVERLOADED:
        return Unavailable(f"{uri}: {bucket.endpoint} asks to slow down ({summary})")
    # 200: an answer that starts as a success and contains an error, to a bulk delete or the end of an upload.
    if status in (200, 408, 500) or status > 501 or code == "RequestTimeout":
        return Unavailable(f"{uri}: {bucket.endpoint} failed ({summary})", maybe_applied=writing)
    return Invalid(
        f"{uri}: {bucket.endpoint} does not accept the request ({summary})",
        remedy="run holdfast doctor on this store: the server may lack what Holdfast needs",
    )


def _summary(failure: Failure) -> str:
    head = " ".join(str(part) for part in (failure.status, failure.code) if part)
    return f"{head}: {failure.message}" if head and failure.message else head or failure.message


def _origin(address: SplitResult) -> tuple[str, str | None, int | None]:
    usual = 443 if address.scheme == "https" else 80
    return address.scheme, address.hostname, address.port or usual


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _plain(quoted: str | None) -> str:
    """Text of the server as one short printable line, decoded from XML in a quoted string."""
    text = _shortened(html.unescape((quoted or "").replace("\\n", " ").replace('\\"', '"')))
    return "".join([letter if letter.isprintable() else " " for letter in text])


def _shortened(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + "..."


def _reason(sentence: str, dump: str) -> str:
    """Why there was no answer."""
    details = dump.partition("HttpError {")[2]
    for mark, words in _REASONS:
        if mark in details:
            return words
    return _shortened(sentence.partition("\n")[0].rpartition(" - ")[2])
