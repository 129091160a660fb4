"""Every outcome of obstore's has one meaning in the port."""

import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
)

from holdfast.base.errors import Contended, Denied, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.objects.cloud.errors import Bucket, Failure, NoBucket, explain, is_lost, is_missing
from holdfast.objects.store import ADDRESSED, CREATE, IfMatch, Version
from tests.unit.objects.cloud import dumps

BUCKET = Bucket("s3", "bucket", "http://store:9000", "AWS_ACCESS_KEY_ID in the environment", "set AWS_ACCESS_KEY_ID")
AZURE = Bucket("az", "bucket", "http://store:9000", "the credentials of account a", "set AZURE_STORAGE_ACCOUNT_KEY")
IF_MATCH = IfMatch(Version('"etag"'))
MODES = [CREATE, ADDRESSED, IF_MATCH]


def xml(code: str, message: str = "reported") -> str:
    return f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'


def explained(error: Exception, *, writing: bool) -> HoldfastError:
    return explain(Failure.read(error), BUCKET, "a/key", writing=writing)


@pytest.mark.parametrize("mode", MODES)
def test_412_is_a_lost_race_in_whatever_class_it_comes(mode: IfMatch) -> None:
    for kind in (AlreadyExistsError, PreconditionError):
        assert is_lost(Failure.read(dumps.answered(kind, 412, xml("PreconditionFailed"))), BUCKET, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted", "ConcurrentModification"])
def test_409_is_contention_and_not_a_lost_race(mode: IfMatch, code: str) -> None:
    error = dumps.answered(AlreadyExistsError, 409, xml(code))
    assert not is_lost(Failure.read(error), BUCKET, mode)
    assert isinstance(explained(error, writing=True), Contended)


def test_409_of_azure_for_a_taken_name_is_a_lost_race() -> None:
    assert is_lost(Failure.read(dumps.answered(AlreadyExistsError, 409, xml("BlobAlreadyExists"))), BUCKET, CREATE)
    assert not is_lost(Failure.read(dumps.answered(GenericError, 500, xml("BlobAlreadyExists"))), BUCKET, CREATE)


def test_if_match_on_a_missing_object_is_a_lost_race() -> None:
    for kind in (PreconditionError, FileNotFoundError):
        for body in (xml("NoSuchKey"), xml("BlobNotFound"), "", None):
            assert is_lost(Failure.read(dumps.answered(kind, 404, body)), BUCKET, IF_MATCH)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("code", ["NoSuchBucket", "ContainerNotFound"])
def test_a_missing_bucket_is_never_a_lost_race(mode: IfMatch, code: str) -> None:
    error = dumps.answered(PreconditionError, 404, xml(code))
    assert not is_lost(Failure.read(error), BUCKET, mode)
    for writing in (True, False):
        reported = explained(error, writing=writing)
        assert isinstance(reported, NoBucket)
        assert not isinstance(reported, NotFound)
        assert str(reported) == "s3://bucket: no such bucket at http://store:9000"
        assert (reported.exit_code, reported.http_status) == (NotFound("").exit_code, NotFound("").http_status)


def test_a_create_cannot_be_lost_to_a_missing_object() -> None:
    assert not is_lost(Failure.read(dumps.answered(FileNotFoundError, 404, None)), BUCKET, CREATE)


def test_a_status_that_cannot_be_read_is_taken_for_the_worst() -> None:
    unreadable = GenericError("something new")
    assert not is_lost(Failure.read(unreadable), BUCKET, CREATE)
    reported = explained(unreadable, writing=True)
    assert isinstance(reported, Unavailable)
    assert reported.maybe_applied
    exists = AlreadyExistsError("something new")
    assert not is_lost(Failure.read(exists), BUCKET, CREATE)
    assert isinstance(explained(exists, writing=True), Contended)
    assert is_lost(Failure.read(PreconditionError("something new")), BUCKET, IF_MATCH)
    assert isinstance(explained(FileNotFoundError("something new"), writing=False), NotFound)


def test_a_missing_object() -> None:
    reported = explained(dumps.answered(FileNotFoundError, 404, xml("NoSuchKey")), writing=False)
    assert isinstance(reported, NotFound)
    assert str(reported) == "s3://bucket/a/key: no such object"


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, None), (403, "AccessDenied"), (403, "InvalidAccessKeyId"), (400, "ExpiredToken"), (400, "InvalidToken")],
)
def test_refused_access_names_the_credentials_and_a_remedy(status: int, code: str | None) -> None:
    reported = explained(dumps.answered(PermissionDeniedError, status, xml(code) if code else None), writing=True)
    assert isinstance(reported, Denied)
    assert "s3://bucket/a/key: http://store:9000 refused access" in str(reported)
    assert "asked with AWS_ACCESS_KEY_ID in the environment" in str(reported)
    assert reported.remedy is not None


@pytest.mark.parametrize(
    ("status", "code", "maybe_applied"),
    [
        (500, "InternalError", True),
        (502, None, True),
        (503, None, True),
        (503, "ServiceUnavailable", True),
        (504, None, True),
        (408, None, True),
        (400, "RequestTimeout", True),
        (503, "SlowDown", False),
        (503, "ServerBusy", False),
        (429, None, False),
    ],
)
def test_trouble_of_the_server_tells_whether_a_write_may_have_landed(
    status: int, code: str | None, maybe_applied: bool
) -> None:
    error = dumps.answered(GenericError, status, xml(code) if code else "<html>gateway</html>")
    reported = explained(error, writing=True)
    assert type(reported) is Unavailable
    assert reported.maybe_applied is maybe_applied
    reading = explained(error, writing=False)
    assert isinstance(reading, Unavailable)
    assert not reading.maybe_applied


def test_a_process_out_of_files_is_not_sent_to_look_at_the_server() -> None:
    reported = explained(dumps.unanswered(GenericError, "Connect", dumps.NO_FILES_LEFT), writing=True)
    assert isinstance(reported, Unavailable)
    assert not reported.maybe_applied
    assert "too many files and connections open" in str(reported)
    assert "ulimit" in str(reported.remedy)


@pytest.mark.parametrize(
    ("kind", "source", "maybe_applied", "words"),
    [
        ("Connect", dumps.REFUSED, False, "cannot connect to http://store:9000: connection refused"),
        ("Timeout", dumps.NEVER_CONNECTED, False, "cannot connect to http://store:9000: no answer in time"),
        ("Timeout", dumps.NEVER_ANSWERED, True, "no usable answer from http://store:9000: no answer in time"),
        ("Request", dumps.HUNG_UP, True, "the connection was closed before the answer"),
    ],
)
def test_silence_tells_whether_the_request_left(kind: str, source: str, maybe_applied: bool, words: str) -> None:
    reported = explained(dumps.unanswered(GenericError, kind, source), writing=True)
    assert type(reported) is Unavailable
    assert reported.maybe_applied is maybe_applied
    assert words in str(reported)


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [("Connect", dumps.REFUSED, Denied), ("Timeout", dumps.NEVER_ANSWERED, Unavailable)],
)
def test_no_credentials_and_nobody_who_gives_any(kind: str, source: str, expected: type[HoldfastError]) -> None:
    error = dumps.unanswered(GenericError, kind, source, address="http://169.254.169.254/latest/api/token")
    reported = explained(error, writing=True)
    assert type(reported) is expected
    assert "no credentials were found" in str(reported)


@pytest.mark.parametrize(
    ("address", "of_the_store"),
    [
        ("https://s3.eu-west-1.amazonaws.com/bucket/key", True),
        ("https://bucket.s3.eu-west-1.amazonaws.com/key", True),
        ("https://sts.eu-west-1.amazonaws.com/?Action=AssumeRoleWithWebIdentity", False),
    ],
)
def test_who_gives_out_credentials_is_not_the_store(address: str, of_the_store: bool) -> None:
    aws = Bucket("s3", "bucket", "https://s3.eu-west-1.amazonaws.com", "x", "y")
    failure = Failure.read(dumps.answered(PreconditionError, 412, None, address=address))
    assert aws.answered(failure) is of_the_store
    assert is_lost(failure, aws, IF_MATCH) is of_the_store


@pytest.mark.parametrize("status", [400, 405, 411, 413, 501])
def test_any_other_refusal_is_no_weather(status: int) -> None:
    reported = explained(dumps.answered(GenericError, status, xml("NotImplemented", "no such header")), writing=True)
    assert isinstance(reported, Invalid)
    assert f"({status} NotImplemented: no such header)" in str(reported)


def test_another_region_and_a_foreign_key() -> None:
    redirect = dumps.unasked(GenericError, "Generic S3 error: Received redirect without LOCATION, this normally ...")
    assert "another region" in str(explained(redirect, writing=False))
    foreign = dumps.unasked(
        InvalidPathError, 'Encountered object with invalid path: Path "q//r" contained empty segment'
    )
    reported = explained(foreign, writing=False)
    assert isinstance(reported, Invalid)
    assert "q//r" in str(reported)


def test_a_bulk_delete_names_the_key_that_was_refused() -> None:
    body = (
        "<DeleteResult><Deleted><Key>a</Key></Deleted>"
        "<Error><Key>b &amp; c</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    )
    failure = Failure.read(dumps.failed_in_a_good_answer(GenericError, body))
    assert failure.key == "b & c"
    assert isinstance(explain(failure, BUCKET, failure.key, writing=True), Denied)
    busy = Failure.read(dumps.failed_in_a_good_answer(GenericError, body.replace("AccessDenied", "InternalError")))
    assert isinstance(explain(busy, BUCKET, "b", writing=True), Unavailable)


def test_deleting_what_is_not_there() -> None:
    assert is_missing(Failure.read(dumps.answered(FileNotFoundError, 404, xml("NoSuchKey"))))
    assert is_missing(Failure.read(dumps.delete_refused(FileNotFoundError, "404", "gone")))
    assert not is_missing(Failure.read(dumps.answered(FileNotFoundError, 404, xml("NoSuchBucket"))))
    assert not is_missing(Failure.read(dumps.answered(FileNotFoundError, 404, "<html>not a store</html>")))


@pytest.mark.parametrize("code", ["AccessDenied", "403"])
def test_a_refused_delete_among_many_is_told_by_code_or_by_status(code: str) -> None:
    failure = Failure.read(dumps.delete_refused(GenericError, code, "no", key="a/b"))
    assert failure.key == "a/b"
    assert isinstance(explain(failure, BUCKET, "a/b", writing=True), Denied)


@pytest.mark.parametrize(
    "key",
    [
        "status: 412,",
        "inner: Status { status: 412, body: None }",
        '",\\n status: 412,',
        "<Code>NoSuchBucket</Code>",
        "Debug source:",
    ],
)
def test_a_key_cannot_pass_for_an_answer(key: str) -> None:
    failure = Failure.read(dumps.answered(AlreadyExistsError, 409, xml("ConditionalRequestConflict"), key=key))
    assert (failure.status, failure.code) == (409, "ConditionalRequestConflict")


def test_a_body_cannot_pass_for_a_status() -> None:
    body = "\n\nDebug source:\nStatus {\n    status: 412,\n    body: None,\n}"
    failure = Failure.read(dumps.answered(AlreadyExistsError, 409, body))
    assert (failure.status, failure.code) == (409, None)


def test_messages_are_one_line_without_the_dump() -> None:
    body = xml("InternalError", "We &quot;failed&quot;.\nTry again" + "!" * 500)
    reported = explained(dumps.answered(GenericError, 500, body), writing=True)
    assert "\n" not in str(reported)
    assert "RetryError" not in str(reported)
    assert 'We "failed". Try again!' in str(reported)
    assert len(str(reported)) < 400


@pytest.mark.parametrize("between", ["&#10;", "&#8232;"])
def test_words_of_a_server_stay_in_their_line(between: str) -> None:
    said = str(explained(dumps.answered(GenericError, 500, xml("InternalError", f"one{between}two")), writing=True))
    assert said.isprintable()
    assert "one" in said
    assert "two" in said


def test_a_missing_container_or_account_of_azure_is_never_a_missing_blob() -> None:
    gone = Failure.read(dumps.delete_refused(FileNotFoundError, "404", "The specified container does not exist."))
    assert not is_missing(gone)
    assert isinstance(explain(gone, AZURE, "k", writing=True), NoBucket)
    account = Failure.read(dumps.answered(FileNotFoundError, 404, xml("ResourceNotFound")))
    assert not is_lost(account, AZURE, IF_MATCH)
    for writing in (True, False):
        trouble = explain(account, AZURE, "k", writing=writing)
        assert isinstance(trouble, NoBucket)
        assert str(trouble) == "az://bucket: no such container, or no such account, at http://store:9000"


def test_a_range_that_starts_at_the_end_has_the_status_of_one() -> None:
    assert Failure.read(dumps.starts_too_late(GenericError)).status == 416
