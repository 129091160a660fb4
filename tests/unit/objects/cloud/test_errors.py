"""Outcomes that the tests with a scripted server (``tests/integration/test_s3_answers``) cannot bring about."""

import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    PreconditionError,
)

from holdfast.base.errors import Contended, HoldfastError, NotFound, Unavailable
from holdfast.objects.cloud.errors import Bucket, Failure, NoBucket, explain, is_lost, is_missing
from holdfast.objects.store import CREATE, IfMatch, Version
from tests.unit.objects.cloud import dumps

BUCKET = Bucket("s3", "bucket", "http://store:9000", "AWS_ACCESS_KEY_ID in the environment", "set AWS_ACCESS_KEY_ID")
AZURE = Bucket("az", "bucket", "http://store:9000", "the credentials of account a", "set AZURE_STORAGE_ACCOUNT_KEY")
IF_MATCH = IfMatch(Version('"etag"'))


def xml(code: str, message: str = "reported") -> str:
    return f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'


def explained(error: Exception, *, writing: bool) -> HoldfastError:
    return explain(Failure.read(error), BUCKET, "a/key", writing=writing)


def test_a_failure_without_a_status_counts_as_the_worst_case() -> None:
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


@pytest.mark.parametrize(
    ("status", "code", "maybe_applied"),
    [(504, None, True), (408, None, True), (400, "RequestTimeout", True), (503, "ServerBusy", False)],
)
def test_a_server_error_says_whether_a_write_may_have_landed(
    status: int, code: str | None, maybe_applied: bool
) -> None:
    error = dumps.answered(GenericError, status, xml(code) if code else "<html>gateway</html>")
    reported = explained(error, writing=True)
    assert type(reported) is Unavailable
    assert reported.maybe_applied is maybe_applied
    assert not getattr(explained(error, writing=False), "maybe_applied", True)


def test_a_process_without_free_descriptors_gets_its_own_remedy() -> None:
    reported = explained(dumps.unanswered(GenericError, "Connect", dumps.NO_FILES_LEFT), writing=True)
    assert isinstance(reported, Unavailable)
    assert not reported.maybe_applied
    assert "too many files and connections open" in str(reported)
    assert "ulimit" in str(reported.remedy)


@pytest.mark.parametrize(
    ("address", "of_the_store"),
    [
        ("https://s3.eu-west-1.amazonaws.com/bucket/key", True),
        ("https://bucket.s3.eu-west-1.amazonaws.com/key", True),
        ("https://sts.eu-west-1.amazonaws.com/?Action=AssumeRoleWithWebIdentity", False),
    ],
)
def test_an_answer_of_a_credential_service_is_not_one_of_the_store(address: str, of_the_store: bool) -> None:
    aws = Bucket("s3", "bucket", "https://s3.eu-west-1.amazonaws.com", "x", "y")
    failure = Failure.read(dumps.answered(PreconditionError, 412, None, address=address))
    assert aws.answered(failure) is of_the_store
    assert is_lost(failure, aws, IF_MATCH) is of_the_store


def test_a_body_is_not_read_as_a_status() -> None:
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
def test_control_characters_of_a_server_are_removed(between: str) -> None:
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
