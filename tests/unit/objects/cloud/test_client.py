"""Choices are made before anybody is asked."""

import pytest
from obstore.exceptions import GenericError

from holdfast.base.errors import Invalid
from holdfast.objects.cloud import CloudStore
from holdfast.objects.cloud.client import connect
from holdfast.objects.cloud.failure import Failure
from holdfast.objects.uri import StoreSpec
from tests.unit.objects.cloud import dumps

KEYS = (("access_key_id", "key"), ("secret_access_key", "secret"))


def s3(**options: str) -> StoreSpec:
    return StoreSpec("s3", "bucket", "", tuple(options.items()), KEYS)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://host:9000", "http://bucket.host:9000"),
        ("https://host/", "https://bucket.host"),
        ("https://bucket.host", "https://bucket.host"),
    ],
)
def test_the_bucket_goes_into_the_host_name_once(endpoint: str, expected: str) -> None:
    client = connect(s3(endpoint=endpoint, virtual_hosted_style="true"), {})
    assert client.place.endpoint == expected
    assert connect(s3(endpoint=endpoint), {}).place.endpoint == endpoint.rstrip("/")


def test_without_an_endpoint_it_is_the_cloud_itself() -> None:
    assert connect(s3(region="eu-north-1"), {}).place.endpoint == "https://s3.eu-north-1.amazonaws.com"
    for in_host, host, base in (("false", "", "/bucket/"), ("true", "bucket.", "/")):
        client = connect(s3(region="eu-north-1", virtual_hosted_style=in_host), {})
        assert client.direct is not None
        assert client.direct._pool._server.host == f"{host}s3.eu-north-1.amazonaws.com"
        assert client.direct._base == base
        assert client.place.failed(
            Failure.read(
                dumps.answered(GenericError, 500, None, address=f"https://{host}s3.eu-north-1.amazonaws.com{base}k")
            )
        )
    google = StoreSpec("gs", "bucket", secrets=(("bearer_token", "t"),))
    assert connect(google, {}).place.endpoint == "https://storage.googleapis.com"
    azure = StoreSpec("az", "container", options=(("account", "a"), ("anonymous", "true")))
    assert connect(azure, {}).place.endpoint == "https://a.blob.core.windows.net"


def test_settings_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(Invalid, match="no TLS"):
        CloudStore(s3(endpoint="http://host", allow_http="false"), environ={})
    with pytest.raises(Invalid, match="'host' is not an address"):
        CloudStore(s3(), environ={"AWS_ENDPOINT_URL": "host"})
    with pytest.raises(Invalid, match="which storage account"):
        CloudStore(StoreSpec("az", "container"), environ={})
    with pytest.raises(Invalid, match="these settings do not work"):
        CloudStore(StoreSpec("gs", "bucket", secrets=(("service_account_key", "not json"),)), environ={})


@pytest.mark.parametrize("odd", ["a\n", "a\r\nx-amz-acl: public-read", "é"])
def test_what_no_header_can_hold_is_refused_and_not_shown(odd: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    environs = [{name: odd} for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION")]
    for environ in environs:
        with pytest.raises(Invalid, match="no request can carry") as caught:
            CloudStore(StoreSpec("s3", "bucket"), environ={**keys, **environ})
        assert odd not in str(caught.value)
    with pytest.raises(Invalid, match="the sse_kms_key_id holds"):
        CloudStore(s3(sse="aws:kms", sse_kms_key_id=odd), environ={})
