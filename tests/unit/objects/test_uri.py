"""Store addresses: every form, every mistake with its remedy, no secret anywhere it could be seen."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from holdfast.base.config import RetrySection, S3Section, Settings
from holdfast.base.errors import Invalid
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.uri import OPTIONS, S3Options, StoreSpec

SECRETS = Settings(
    s3=S3Section(
        endpoint="http://127.0.0.1:9000",
        region="eu-central-1",
        access_key_id="AKIDEXAMPLE",
        secret_access_key=SecretStr("hunter2"),
        session_token=SecretStr("tok3n"),
        allow_http=True,
        sse="aws:kms",
        sse_kms_key_id="key-1",
    )
)


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("file:data", "{here}/data"),
        ("file:./data", "{here}/data"),
        ("file:a%20b%3F", "{here}/a b?"),
        ("file:.holdfast", "{here}/.holdfast"),
        ("file:../data", "{here}/../data"),
        ("file:/srv/data", "/srv/data"),
        ("file:///srv/data", "/srv/data"),
        ("file://localhost/srv/data", "/srv/data"),
        ("file:~/data", "/home-of-test/data"),
        ("file:/srv/%ff", "/srv/\udcff"),
    ],
)
def test_a_directory(uri: str, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home-of-test")
    spec = StoreSpec.parse(uri)
    assert spec.place == folder.format(here=Path.cwd())
    monkeypatch.chdir(tmp_path)  # this does not move the store
    assert pickle.loads(pickle.dumps(spec)).place == spec.place


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30))
def test_parsing_the_uri_of_a_spec_returns_the_spec(name: str) -> None:
    spec = StoreSpec("file", str(Path("/srv") / name.replace("/", "-")))
    assert StoreSpec.parse(spec.uri) == spec


@pytest.mark.parametrize(("uri", "name"), [("memory:", ""), ("memory:x", "x"), ("memory://x", "x")])
def test_a_memory_store_may_have_a_name(uri: str, name: str) -> None:
    assert StoreSpec.parse(uri) == StoreSpec("memory", name)


class TestBuckets:
    @pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
    def test_bucket_prefix_and_options(self, scheme: str) -> None:
        for rest, bucket, prefix in (
            ("bucket", "bucket", ""),
            ("bucket/", "bucket", ""),
            ("bucket/a/b/", "bucket", "a/b"),
            ("my.bucket-1/a%20b%23", "my.bucket-1", "a b#"),
        ):
            spec = StoreSpec.parse(f"{scheme}://{rest}")
            assert (spec.scheme, spec.place, spec.prefix) == (scheme, bucket, prefix)
            assert StoreSpec.parse(spec.uri) == spec
        values = {"endpoint": "http%3A%2F%2F127.0.0.1%3A1", "sse": "AES256", "sse_kms_key_id": ""}
        for option in OPTIONS[scheme].model_fields:
            ((name, value),) = StoreSpec.parse(f"{scheme}://b?{option}={values.get(option, '1')}").options
            assert (name, value) == (option, {**values, "endpoint": "http://127.0.0.1:1"}.get(option, "1"))

    def test_the_settings_complete_a_uri(self) -> None:
        spec = StoreSpec.parse("s3://bucket?region=us-east-1", SECRETS)
        assert dict(spec.options) == {
            "endpoint": "http://127.0.0.1:9000",
            "region": "us-east-1",
            "allow_http": "true",
            "sse": "aws:kms",
            "sse_kms_key_id": "key-1",
        }
        assert dict(spec.secrets) == {
            "access_key_id": "AKIDEXAMPLE",
            "secret_access_key": "hunter2",
            "session_token": "tok3n",
        }
        assert StoreSpec.parse("s3://bucket", Settings()) == StoreSpec("s3", "bucket")
        for uri in ("gs://bucket", "az://bucket", "file:data", "memory:"):
            other = StoreSpec.parse(uri, SECRETS)
            assert (other.options, other.secrets) == ((), ())
        settings = Settings(retry=RetrySection(attempts=2, base_ms=1, max_ms=3, deadline_ms=4))
        assert {StoreSpec.parse(uri, settings).retry for uri in ("s3://b", "file:x", "memory:")} == {
            RetryPolicy(2, 1, 3, 4)
        }


class TestMistakes:
    @pytest.mark.parametrize(
        ("uri", "message", "remedy"),
        [
            ("", "store URI '' has no known scheme", "examples: file:./data, memory:, s3://bucket/prefix"),
            ("data", "'data' has no known scheme", "examples: "),
            ("/srv/data", "'/srv/data' has no known scheme", "for a directory write file:/srv/data"),
            ("./data", "no known scheme", "for a directory write file:./data"),
            ("~/data", "no known scheme", "for a directory write file:~/data"),
            ("http://bucket", "no known scheme", "examples: "),
            ("fil:data", "no known scheme", "did you mean file:"),
            ("S3://bucket", "no known scheme", "did you mean s3:|examples: "),
            ("file:", "'file:' names no directory", "write file:./data"),
            ("file://", "names no directory", "write file:./data"),
            ("file://host/data", "names a host 'host'", "write file:host/"),
            ("file:~no-such-user/x", "home directory", "full path"),
            ("file:a\0b", "zero byte", "write file:./data"),
            ("file:data?sync=no", "'file:data' has an unknown option 'sync'", "known here: unsafe_network_filesystem"),
            ("file:data?unsafe_network_filesystem=2", "unsafe_network_filesystem: Input should be a valid boolean", ""),
            ("memory:a/b", "not the name of a memory store", "write memory: or memory:name"),
            ("memory:x?y=1", "'memory:x' is not the name of a memory store", "write memory: or memory:name"),
            ("s3:bucket", "store URI 's3:bucket' needs a bucket", "write s3://bucket/prefix"),
            ("s3://", "store URI 's3://' needs a bucket", "write s3://bucket/prefix"),
            ("gs:///prefix", "store URI 'gs:///prefix' needs a bucket", "write gs://bucket/prefix"),
            ("s3://bucket/a\nb", "has a control character", "leave it out"),
            ("s3://bucket/%ff", "lone surrogate", "use other characters"),
            ("s3://127.0.0.1:9000/bucket", "'127.0.0.1:9000' is not a bucket name", r"\?endpoint=http://host:port"),
            ("s3://[::1/bucket", "cannot be parsed", "examples: "),
            ("s3://bucket/a#b", "'s3://bucket/a#b' has a #", "write %23"),
            ("s3://bucket/a//b", "key 'a//b' has a component ''", "non-empty names"),
            ("s3://bucket/../b", "has a component '..'", "non-empty names"),
            ("s3://bucket/" + "x" * 1025, "has 1025 bytes", "use a shorter key"),
            ("s3://bucket?endpont=x", "unknown option 'endpont'", "did you mean endpoint?"),
            ("gs://bucket?region=x", "unknown option 'region'", "known here: allow_http"),
        ],
    )
    def test_the_message_names_the_thing_and_the_remedy(self, uri: str, message: str, remedy: str) -> None:
        with pytest.raises(Invalid) as caught:
            StoreSpec.parse(uri)
        assert message in str(caught.value)
        assert any(hint in str(caught.value.remedy).replace("\\", "") for hint in remedy.replace("\\", "").split("|"))
        assert "\n" not in str(caught.value)


class TestSecrets:
    @pytest.mark.parametrize(
        "uri",
        [
            "s3://bucket?secret_access_key=hunter2",
            "s3://bucket?aws_secret_access_key=hunter2",
            "s3://key:hunter2@bucket/prefix",
            "s3://key:hunter2@bucket:1/prefix#x",
            "https://key:hunter2@host/bucket",
            "https://key:with/hunter2+and/slashes@host/bucket",
            "s3://key:with/hunter2+and/slashes@bucket/prefix",
            "s3://key:hunter2",
            "key:hunter2@bucket",
            "file://key:hunter2@host/folder",
            "memory:key:hunter2@name",
            "s3://bucket?endpoint=http://key:hunter2@host",
            "s3://bucket?endpoint=ftp://key:hunter2@host",
            "memory:x?password=hunter2",
            "file:data?secret=hunter2",
        ],
    )
    def test_a_secret_in_a_uri_is_not_repeated_in_the_error(self, uri: str) -> None:
        with pytest.raises(Invalid) as caught:
            StoreSpec.parse(uri)
        assert "hunter2" not in f"{caught.value} {caught.value.remedy}"
        if "?secret_access_key" in uri:
            assert "carries a secret (" in str(caught.value)
            assert "holdfast.toml" in str(caught.value.remedy)

    def test_an_endpoint_with_credentials_in_the_settings_is_refused(self) -> None:
        settings = Settings(s3=S3Section(endpoint="http://key:hunter2@host"))
        with pytest.raises(Invalid, match="the endpoint carries credentials") as caught:
            StoreSpec.parse("s3://bucket", settings)
        assert "hunter2" not in str(caught.value)

    def test_no_secret_shows_in_repr_or_address(self) -> None:
        spec = StoreSpec.parse("s3://bucket/prefix", SECRETS)
        assert pickle.loads(pickle.dumps(spec)) == spec
        for shown in (repr(spec), str(spec), spec.uri):
            assert not [secret for secret in ("AKIDEXAMPLE", "hunter2", "tok3n") if secret in shown]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("regoin", "x", "an unknown option 'regoin'"),
        *(
            ("endpoint", endpoint, "not an address")
            for endpoint in (
                *("127.0.0.1:9000", "ftp://host", "http://", "http://host:port", "http://host/a b"),
                *("http://host/a\r\nb", "http://mün.example", "ftp://key:secret@host"),
                "http://key:with/secret/slashes@host:port",
            )
        ),
        ("endpoint", "http://key:secret@host", "carries credentials"),
        ("sse", "rot13", "sse: Input should be"),
        ("sse_kms_key_id", "k", "sse_kms_key_id needs sse=aws:kms"),
        ("request_timeout_ms", "99999999999999999999", "request_timeout_ms: Input should be less than or equal"),
        ("connect_timeout_ms", "1000000001", "connect_timeout_ms: Input should be less than or equal"),
        ("requests_in_flight", "9" * 5000, "requests_in_flight: Unable to parse"),
        ("requests_in_flight", "00", "requests_in_flight: Input should be greater than or equal"),
        ("request_timeout_ms", "5s", "request_timeout_ms: Input should be a valid integer"),
        ("anonymous", "perhaps", "anonymous: Input should be a valid boolean"),
    ],
)
def test_a_bad_option_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        StoreSpec("s3", "bucket", options=((name, value),))
    assert caught.value.remedy
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_places_and_secrets() -> None:
    with pytest.raises(Invalid, match="scheme 'ftp'"):
        StoreSpec("ftp", "bucket")
    for bucket in ("", "a/b", "..", "a b", "é", "a\r\nx: y"):
        with pytest.raises(Invalid, match="not a bucket") as caught:
            StoreSpec("s3", bucket)
        assert "\n" not in str(caught.value)
    with pytest.raises(Invalid, match="component ''"):
        StoreSpec("s3", "bucket", "a/")
    with pytest.raises(Invalid, match="an unknown secret 'password'"):
        StoreSpec("s3", "bucket", secrets=(("password", "x"),))


def test_options_have_types_and_an_empty_one_counts_as_unset() -> None:
    options = StoreSpec("s3", "b", options=(("anonymous", "True"), ("request_timeout_ms", "250"), ("region", "")))
    values = options.values(S3Options)
    assert (values.anonymous, values.allow_http, values.request_timeout_ms, values.region) == (True, True, 250, None)
