"""Which server is asked, and as whom, is decided when the store is opened."""

import pytest
from obstore.exceptions import GenericError

from holdfast.base.errors import Invalid
from holdfast.objects.cloud import CloudStore
from holdfast.objects.cloud.config import connect
from holdfast.objects.cloud.errors import Bucket, Failure
from holdfast.objects.place import Place
from holdfast.objects.store import CREATE, OVERWRITE
from holdfast.objects.uri import StoreSpec
from tests.unit.objects.cloud import dumps

KEYS = (("access_key_id", "key"), ("secret_access_key", "secret"))
MIB = 1024 * 1024


def s3(**options: str) -> StoreSpec:
    return StoreSpec("s3", "bucket", "", tuple(options.items()), KEYS)


def az(**options: str) -> StoreSpec:
    return StoreSpec("az", "container", "", (("account", "a"), ("anonymous", "true"), *options.items()))


GS = StoreSpec("gs", "bucket", secrets=(("bearer_token", "t"),))


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://host:9000", "http://bucket.host:9000"),
        ("https://host/", "https://bucket.host"),
        ("https://bucket.host", "https://bucket.host"),
    ],
)
def test_the_host_name_contains_the_bucket_once(endpoint: str, expected: str) -> None:
    in_host = connect(s3(endpoint=endpoint, virtual_hosted_style="true"), {})
    assert in_host.bucket.endpoint == expected
    assert connect(s3(endpoint=endpoint), {}).bucket.endpoint == endpoint.rstrip("/")


def test_the_default_endpoint_is_that_of_the_provider() -> None:
    for in_host, host, base in (("false", "", "/bucket/"), ("true", "bucket.", "/")):
        bucket = connect(s3(region="eu-north-1", virtual_hosted_style=in_host), {}).bucket
        assert bucket.endpoint == f"https://{host}s3.eu-north-1.amazonaws.com"
        asked = dumps.answered(GenericError, 500, None, address=f"{bucket.endpoint}{base}k")
        assert bucket.answered(Failure.read(asked))
    assert connect(GS, {}).bucket.endpoint == "https://storage.googleapis.com"
    assert connect(az(), {}).bucket.endpoint == "https://a.blob.core.windows.net"


@pytest.mark.parametrize(
    ("scheme", "environ"),
    [
        ("s3", {"AWS_ENDPOINT_URL_S3": "HTTP://Host:80/"}),
        ("s3", {"AWS_ENDPOINT_URL": "http://host/"}),
        ("s3", {"AWS_ENDPOINT": "http://host"}),
        ("gs", {"GOOGLE_BASE_URL": "http://HOST:80"}),
        ("az", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ENDPOINT": "http://host:80/"}),
    ],
)
def test_the_place_does_not_depend_on_the_source_of_the_endpoint(scheme: str, environ: dict[str, str]) -> None:
    account = {"az": "a"}.get(scheme, "")
    place = CloudStore(StoreSpec(scheme, "bucket", "p"), environ=environ).place
    assert place == Place(scheme, "http://host", "bucket", "p", account)
    by_uri = (("account", "a"),) if account else ()
    options = (("endpoint", "http://host/"), *by_uri)
    assert CloudStore(StoreSpec(scheme, "bucket", "p", options), environ={}).place == place


def test_a_place_at_the_provider_has_no_endpoint() -> None:
    home = Place("s3", "", "bucket", "")
    for options in ({}, {"region": "eu-north-1"}, {"endpoint": "https://s3.eu-north-1.amazonaws.com:443/"}):
        assert CloudStore(s3(**options), environ={}).place == home
        assert CloudStore(s3(**options, virtual_hosted_style="true"), environ={}).place == home
    assert CloudStore(s3(region="us-gov-west-1"), environ={}).place != home
    assert (
        CloudStore(s3(region="cn-north-1", endpoint="https://s3.cn-north-1.amazonaws.com.cn"), environ={}).place != home
    )
    assert CloudStore(GS, environ={}).place == Place("gs", "", "bucket", "")
    assert CloudStore(az(), environ={}).place == Place("az", "", "container", "", "a")
    by_variable = CloudStore(StoreSpec("az", "container"), environ={"AZURE_STORAGE_ACCOUNT_NAME": "b"}).place
    assert by_variable == Place("az", "", "container", "", "b")


@pytest.mark.parametrize(
    ("address", "answered"),
    [
        ("http://host:90/base/bucket/k", True),
        ("http://bucket.host:90/k", True),
        ("http://host:9000/base/bucket/k", False),
        ("http://host.example:90/base/bucket/k", False),
        ("http://169.254.169.254/latest//bucket.host", False),
    ],
)
def test_requests_to_the_store_are_told_from_those_for_credentials(address: str, answered: bool) -> None:
    bucket = connect(s3(endpoint="HTTP://Host:90/base/"), {}).bucket
    asked = Failure.read(dumps.answered(GenericError, 500, None, address=address))
    assert bucket.answered(asked) is answered


def test_invalid_settings_are_refused_when_the_store_is_opened() -> None:
    with pytest.raises(Invalid, match="no TLS"):
        CloudStore(s3(endpoint="http://host", allow_http="false"), environ={})
    with pytest.raises(Invalid, match="'host' is not an address"):
        CloudStore(s3(), environ={"AWS_ENDPOINT_URL": "host"})
    with pytest.raises(Invalid, match="no storage account is configured"):
        CloudStore(StoreSpec("az", "container"), environ={})


@pytest.mark.parametrize("odd", ["a\n", "a\r\nx-amz-acl: public-read", "é"])
def test_what_a_header_cannot_carry_is_refused_and_not_shown(odd: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    environs = [{name: odd} for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION")]
    for environ in environs:
        with pytest.raises(Invalid, match="an HTTP header cannot carry") as caught:
            CloudStore(StoreSpec("s3", "bucket"), environ={**keys, **environ})
        assert odd not in str(caught.value)
    with pytest.raises(Invalid, match="the sse_kms_key_id contains"):
        CloudStore(s3(sse="aws:kms", sse_kms_key_id=odd), environ={})


def test_the_number_of_requests_of_large_bodies_and_deletes() -> None:
    aws, google, azure = (CloudStore(spec, environ={}) for spec in (s3(), GS, az()))
    single = CloudStore(s3(bulk_delete="false"), environ={})
    assert [store.put_requests(33 * MIB, OVERWRITE) for store in (aws, google, azure)] == [7, 7, 6]
    assert [store.put_requests(33 * MIB, CREATE) for store in (aws, google, azure)] == [1, 1, 1]
    assert [aws.delete_requests(keys) for keys in (0, 1, 1000, 1001)] == [0, 1, 1, 2]
    assert [store.delete_requests(1001) for store in (google, azure, single)] == [1001] * 3


async def test_a_backslash_is_refused_on_azure() -> None:
    azure = CloudStore(az(endpoint="http://127.0.0.1:1"), environ={})
    for call in (azure.get("a\\b"), azure.put("a\\b", b"x"), azure.delete_many(["a", "a\\b"])):
        with pytest.raises(Invalid, match="contains a backslash"):
            await call
    with pytest.raises(Invalid, match="contains a backslash"):
        CloudStore(StoreSpec("az", "container", "a\\b", (("account", "a"),)), environ={})


def test_a_bucket_named_like_the_start_of_an_ip_address_is_not_taken_for_a_host() -> None:
    bucket = Bucket("s3", "127", "https://s3.us-east-1.amazonaws.com", "the container's role", "set AWS_ACCESS_KEY_ID")
    of_role = Failure.read(dumps.answered(GenericError, 404, None, address="http://127.0.0.1:39421/role"))
    of_store = Failure.read(dumps.answered(GenericError, 404, None, address="https://127.s3.us-east-1.amazonaws.com/k"))
    assert not bucket.answered(of_role)
    assert bucket.answered(of_store)
