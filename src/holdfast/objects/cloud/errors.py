"""From a client's failure to an error of ours: one line that names the object, the endpoint and the remedy.

    what came back                                on a write       on a read
    ---------------------------------------------------------------------------------------------
    412; 404 on if-match; BlobAlreadyExists       Lost             -
    409                                           Contended        Contended
    404, bucket or container                      NoBucket         NoBucket
    404                                           NoBucket         NotFound
    401, 403, an expired token                    Denied           Denied
    429, SlowDown, ServerBusy                     Unavailable      Unavailable
    408, 5xx, no answer, half an answer           Unavailable, *   Unavailable
    not connected                                 Unavailable      Unavailable
    a redirect                                    Invalid          Invalid
    any other status                              Invalid          Invalid

``*`` is ``maybe_applied``: the write may have landed. What cannot be told is taken for that. A race is ``Lost`` only if
the store said so; a 409 is evidence of nothing, whatever class obstore gives it.
"""

from dataclasses import dataclass

from obstore.exceptions import AlreadyExistsError, InvalidPathError, PreconditionError

from holdfast.base.errors import Contended, Denied, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.objects.cloud.failure import TOO_MANY_FILES, Failure
from holdfast.objects.store import Addressed, Create, IfMatch

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_NO_OBJECT = {"NoSuchKey", "BlobNotFound"}
_SIGNED_WRONGLY = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"}
_TURNED_AWAY = {"SlowDown", "ServerBusy", "TooManyRequests"}
_WRONG_REGION = "Received redirect without LOCATION"


class NoBucket(Invalid):
    """The bucket is not there. No ``NotFound``: ``find`` would take a misspelt bucket for an unwritten object."""

    kind = "not_found"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client talks to, as a message names it."""

    scheme: str
    bucket: str
    endpoint: str
    credentials: str
    where_to_put_keys: str

    def uri(self, key: str = "") -> str:
        return f"{self.scheme}://{self.bucket}/{key}" if key else f"{self.scheme}://{self.bucket}"

    def failed(self, failure: Failure) -> bool:
        """Whether it was the store that failed. Otherwise a service was asked that gives out credentials."""
        address = failure.address
        return address is None or address.startswith(self.endpoint) or f"//{self.bucket}." in address


def is_lost(failure: Failure, place: Place, mode: Create | Addressed | IfMatch) -> bool:
    """Whether the store said that the condition does not hold."""
    if not place.failed(failure):
        return False
    if failure.status is None:
        return isinstance(failure.error, PreconditionError)
    if failure.status == 404:
        return isinstance(mode, IfMatch) and failure.code not in _NO_BUCKET
    # Under a taken name Azure answers a create with 409 and this code, and some servers with 304.
    return failure.status in (412, 304) or (failure.status == 409 and failure.code == "BlobAlreadyExists")


def is_missing(failure: Failure) -> bool:
    """Whether the delete of one object found nothing. S3 does not mind; the others say so, Azure without a code."""
    return failure.code in _NO_OBJECT or (failure.status == 404 and failure.key is not None)


def explain(failure: Failure, place: Place, key: str, *, writing: bool) -> HoldfastError:
    """The error to raise. ``key`` is the full one, with the store's prefix; empty for a listing of everything."""
    if not place.failed(failure):
        return _no_credentials(failure, place)
    if failure.status is None:
        return _without_answer(failure, place, key, writing=writing)
    return _refused(failure, place, key, writing=writing)


def _no_credentials(failure: Failure, place: Place) -> HoldfastError:
    """A service that gives out credentials was asked because none were given, and gave none."""
    what = f"{place.uri()}: no credentials were found, and {place.credentials} could not be had"
    if not failure.sent or (failure.status or 500) < 500:
        return Denied(what, remedy=place.where_to_put_keys)
    return Unavailable(f"{what} now ({_words(failure)})")


def _without_answer(failure: Failure, place: Place, key: str, *, writing: bool) -> HoldfastError:
    uri = place.uri(key)
    if isinstance(failure.error, AlreadyExistsError):
        return Contended(f"{uri}: another writer was at work")
    if isinstance(failure.error, FileNotFoundError):
        return NotFound(f"{uri}: no such object")
    if isinstance(failure.error, InvalidPathError):
        return Invalid(
            f"{place.uri()}: holds a key that is not one of Holdfast's ({failure.said})",
            remedy="give Holdfast a bucket or a prefix of its own",
        )
    if _WRONG_REGION in failure.said:
        return _elsewhere(place)
    if not failure.sent:
        ours = failure.said == TOO_MANY_FILES
        return Unavailable(
            f"{uri}: cannot connect to {place.endpoint}: {failure.said}",
            remedy="make fewer requests at a time, or raise the limit (ulimit -n)"
            if ours
            else "check the endpoint, and that the server is running",
        )
    return Unavailable(f"{uri}: no usable answer from {place.endpoint}: {failure.said}", maybe_applied=writing)


def _elsewhere(place: Place) -> Invalid:
    return Invalid(
        f"{place.uri()}: {place.endpoint} sends its clients elsewhere: the bucket is in another region",
        remedy="set region to the bucket's own, or endpoint to where it is",
    )


def _refused(failure: Failure, place: Place, key: str, *, writing: bool) -> HoldfastError:
    uri, words = place.uri(key), _words(failure)
    status, code = failure.status or 0, failure.code
    if status in (301, 302, 307, 308):
        return _elsewhere(place)
    if status == 404 and (writing or code in _NO_BUCKET):
        return NoBucket(
            f"{place.uri()}: no such bucket at {place.endpoint}",
            remedy="create the bucket, or check its name and the endpoint",
        )
    if status == 404:
        return NotFound(f"{uri}: no such object")
    if status == 409:
        return Contended(f"{uri}: another writer was at work ({words})")
    if status in (401, 403) or code in _SIGNED_WRONGLY or code == "AccessDenied":
        return Denied(
            f"{uri}: {place.endpoint} refused access ({words}), asked with {place.credentials}",
            remedy="check these credentials and what they may do: read, write, delete, and list "
            "(who may not list is told 403 for an object that is not there)",
        )
    if status == 429 or code in _TURNED_AWAY:
        return Unavailable(f"{uri}: {place.endpoint} asks to slow down ({words})")
    # 200 is here for answers that begin well and end in an error: a bulk delete, the completion of an upload.
    if status in (200, 408, 500) or status > 501 or code == "RequestTimeout":
        return Unavailable(f"{uri}: {place.endpoint} failed ({words})", maybe_applied=writing)
    return Invalid(
        f"{uri}: {place.endpoint} does not accept the request ({words})",
        remedy="run holdfast doctor on this store: the server may lack what Holdfast needs",
    )


def _words(failure: Failure) -> str:
    head = " ".join(str(part) for part in (failure.status, failure.code) if part)
    return f"{head}: {failure.said}" if head and failure.said else head or failure.said
