"""A target is checked once, crosses processes, and keeps its secrets to itself."""

import pickle

import pytest

from holdfast.base.errors import Invalid
from holdfast.objects.cloud import CloudTarget
from holdfast.objects.cloud.target import OPTIONS
from holdfast.objects.spec import CLOUD_OPTIONS

ENDPOINT = ("endpoint", "http://127.0.0.1:9000")


def test_it_crosses_processes_and_hides_secrets() -> None:
    target = CloudTarget("s3", "bucket", "a/b", (ENDPOINT,), (("secret_access_key", "hunter2"),))
    copy = pickle.loads(pickle.dumps(target))
    assert copy == target
    assert copy.secret("secret_access_key") == "hunter2"
    assert "hunter2" not in repr(target) + str(target)
    assert target.uri == "s3://bucket/a/b"


def test_it_understands_every_option_that_a_uri_may_have() -> None:
    for scheme, names in CLOUD_OPTIONS.items():
        assert names <= OPTIONS[scheme].keys()


@pytest.mark.parametrize(
    ("options", "words", "remedy"),
    [
        ((("regoin", "x"),), "unknown option 'regoin'", "did you mean region?"),
        ((("endpoint", "127.0.0.1:9000"),), "not an address", "http://host:port"),
        ((("endpoint", "ftp://host"),), "not an address", "http://host:port"),
        ((("endpoint", "http://"),), "not an address", "http://host:port"),
        ((("endpoint", "http://host:port"),), "not an address", "http://host:port"),
        ((("endpoint", "http://host/a b"),), "not an address", "http://host:port"),
        ((("endpoint", "http://host/a\r\nb"),), "not an address", "http://host:port"),
        ((("endpoint", "http://mün.example"),), "not an address", "http://host:port"),
        ((("endpoint", "ftp://key:secret@host"),), "not an address", "http://host:port"),
        ((("endpoint", "http://key:with/secret/slashes@host:port"),), "not an address", "http://host:port"),
        ((("endpoint", "http://key:secret@host"),), "carries credentials", "holdfast.toml"),
        ((("sse", "rot13"),), "sse=rot13", "AES256"),
        ((("sse_kms_key_id", "k"),), "sse_kms_key_id", "both"),
    ],
)
def test_a_bad_option_is_named_with_its_remedy(options: tuple[tuple[str, str], ...], words: str, remedy: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        CloudTarget("s3", "bucket", options=options)
    assert remedy in (caught.value.remedy or "")
    assert "secret" not in str(caught.value)


def test_bad_places_and_secrets() -> None:
    with pytest.raises(Invalid, match="scheme 'ftp'"):
        CloudTarget("ftp", "bucket")
    for bucket in ("", "a/b", "..", "a b", "é", "a\r\nx: y"):
        with pytest.raises(Invalid, match="not a bucket") as caught:
            CloudTarget("s3", bucket)
        assert "\n" not in str(caught.value)
    with pytest.raises(Invalid, match="component ''"):
        CloudTarget("s3", "bucket", "a/")
    with pytest.raises(Invalid, match="unknown secret 'password'"):
        CloudTarget("s3", "bucket", secrets=(("password", "x"),))


def test_values_are_read_by_their_kind() -> None:
    target = CloudTarget("s3", "bucket", options=(("anonymous", "True"), ("request_timeout_ms", "250"), ("region", "")))
    assert target.switch("anonymous", default=False)
    assert target.switch("allow_http", default=True)
    assert target.millis("request_timeout_ms", default=1) == 250
    assert target.text("region") is None
    wrong = CloudTarget("s3", "bucket", options=(("anonymous", "perhaps"), ("request_timeout_ms", "5s")))
    with pytest.raises(Invalid, match="anonymous=perhaps"):
        wrong.switch("anonymous", default=False)
    with pytest.raises(Invalid, match="request_timeout_ms=5s"):
        wrong.millis("request_timeout_ms", default=1)
