"""One source gives all of the credentials, and the first that has any wins."""

from pathlib import Path

import pytest

from holdfast.base.errors import Denied, Invalid
from holdfast.objects.cloud.config import carried
from holdfast.objects.cloud.credentials import (
    Credentials,
    Keys,
    Role,
    Unsigned,
    find_credentials,
    read_profile,
)
from holdfast.objects.uri import StoreSpec

IN_SETTINGS = (("access_key_id", "AK-settings"), ("secret_access_key", "SK-settings"))
IN_ENVIRON = {"AWS_ACCESS_KEY_ID": "AK-env", "AWS_SECRET_ACCESS_KEY": "SK-env", "AWS_SESSION_TOKEN": "token-env"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = AK-default\naws_secret_access_key = SK%default\n"
        "[work]\naws_access_key_id = AK-work\naws_secret_access_key = SK-work\naws_session_token = token-work\n"
    )
    (folder / "config").write_text(
        "[default]\nregion = eu-west-1\n"
        "[profile work]\nregion = eu-central-1\nendpoint_url = http://127.0.0.1:1\n"
        "[profile sso]\nsso_session = corp\nregion = us-west-2\n"
    )
    return tmp_path


def found(target: StoreSpec, environ: dict[str, str]) -> Credentials:
    return find_credentials(target, environ, lambda: read_profile(target, environ))


def test_settings_then_the_environment_then_the_profile(home: Path) -> None:
    target, environ = StoreSpec("s3", "bucket"), {"HOME": str(home)}
    in_settings = StoreSpec("s3", "bucket", secrets=IN_SETTINGS)
    assert found(in_settings, IN_ENVIRON | environ) == Keys(
        "the keys in the settings", "AK-settings", "SK-settings", None
    )
    by_environment = Keys("AWS_ACCESS_KEY_ID in the environment", "AK-env", "SK-env", "token-env")
    assert found(target, {**IN_ENVIRON, **environ, "AWS_PROFILE": "work"}) == by_environment
    default = Keys("profile 'default' of the AWS files", "AK-default", "SK%default", None)
    assert found(target, environ) == default
    elsewhere = {"AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws" / "credentials"), "HOME": str(home / "nowhere")}
    assert found(target, elsewhere) == default
    work = found(target, {**environ, "AWS_PROFILE": "work"})
    assert work == Keys("profile 'work' of the AWS files", "AK-work", "SK-work", "token-work")
    assert "SK-work" not in repr(work)
    assert "token-work" not in repr(work)
    assert "SK-work" not in repr(read_profile(target, {**environ, "AWS_PROFILE": "work"}))
    anonymous = StoreSpec("s3", "bucket", options=(("anonymous", "true"),), secrets=IN_SETTINGS)
    assert found(anonymous, IN_ENVIRON | environ) == Unsigned()


def test_the_profile_in_the_address_overrides_all_other_credentials(home: Path) -> None:
    """An address with ``?profile=work`` must not get another identity because of what is set elsewhere."""
    target = StoreSpec("s3", "bucket", options=(("profile", "work"),), secrets=IN_SETTINGS)
    keys = found(target, {**IN_ENVIRON, "HOME": str(home), "AWS_PROFILE": "default"})
    assert keys == Keys("profile 'work' of the AWS files", "AK-work", "SK-work", "token-work")
    with pytest.raises(Denied, match="profile 'sso' contains no keys"):
        found(StoreSpec("s3", "bucket", options=(("profile", "sso"),)), {**IN_ENVIRON, "HOME": str(home)})


def test_a_named_profile_without_keys_is_an_error(home: Path) -> None:
    with pytest.raises(Denied, match="profile 'sso' contains no keys") as caught:
        found(StoreSpec("s3", "bucket"), {"HOME": str(home), "AWS_PROFILE": "sso"})
    assert "export-credentials --profile sso" in (caught.value.remedy or "")


def test_a_missing_profile_is_an_error(home: Path) -> None:
    with pytest.raises(Invalid, match="no profile 'wrok'"):
        found(StoreSpec("s3", "bucket"), {"HOME": str(home), "AWS_PROFILE": "wrok"})


def test_a_broken_file_is_named_and_not_quoted(home: Path) -> None:
    (home / ".aws" / "credentials").write_text("aws_secret_access_key = hunter2\n")
    with pytest.raises(Invalid, match="credentials is not an AWS settings file") as caught:
        found(StoreSpec("s3", "bucket"), {"HOME": str(home)})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", IN_ENVIRON.keys() - {"AWS_SESSION_TOKEN"})
def test_half_a_key_is_an_error(name: str) -> None:
    with pytest.raises(Invalid, match="is missing"):
        found(StoreSpec("s3", "bucket"), {name: "x"})


def test_a_role_is_used_if_there_are_no_keys(tmp_path: Path) -> None:
    target, environ = StoreSpec("s3", "bucket"), {"HOME": str(tmp_path)}
    assert found(target, environ) == Role("the instance's role")
    assert found(target, {**environ, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://x"}) == Role("the container's role")
    with pytest.raises(Denied, match="no credentials were found") as caught:
        found(target, {**environ, "AWS_EC2_METADATA_DISABLED": "true"})
    assert "AWS_ACCESS_KEY_ID" in (caught.value.remedy or "")


def test_an_address_for_another_process_contains_the_keys_of_this_one(home: Path) -> None:
    """A task of Spark has another environment; a role it must have itself."""
    environ = {"HOME": str(home), "AWS_PROFILE": "work"}
    sent = carried(StoreSpec("s3", "bucket"), environ)
    assert dict(sent.options) == {"region": "eu-central-1", "endpoint": "http://127.0.0.1:1"}
    keys = found(sent, {})
    assert isinstance(keys, Keys)
    assert (keys.access_key_id, keys.secret_access_key, keys.session_token) == ("AK-work", "SK-work", "token-work")
    assert carried(StoreSpec("s3", "bucket"), {"AWS_REGION": "eu-west-1"}).secrets == ()
    azure = {"AZURE_STORAGE_ACCOUNT_NAME": "acme", "AZURE_STORAGE_ACCOUNT_KEY": "secret"}
    sent = carried(StoreSpec("az", "container"), azure)
    assert (dict(sent.options)["account"], sent.secret("account_key")) == ("acme", "secret")
