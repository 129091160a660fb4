"""Settings: precedence, refusal of unknown keys, secrets that stay secret."""

import re
from pathlib import Path

import pytest

from holdfast.base.config import DEFAULT_STORE, Settings, load, resolve
from holdfast.base.errors import Invalid, NotFound


def write(folder: Path, text: str) -> Path:
    path = folder / "holdfast.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    write(
        tmp_path, '[store]\nuri = "file:from-file"\n[s3]\nregion = "file"\nendpoint = "file"\n[retry]\nattempts = 3\n'
    )
    environ = {"HOLDFAST_STORE__URI": "file:from-env", "HOLDFAST_S3__REGION": "env"}
    resolved = resolve(environ=environ, folder=tmp_path, flags={"store": {"uri": "file:from-flag"}})
    settings = resolved.settings
    assert (settings.store.uri, settings.s3.region, settings.s3.endpoint) == ("file:from-flag", "env", "file")
    assert (settings.retry.attempts, settings.retry.base_ms) == (3, 50)
    assert resolved.sources == {
        "store.uri": "command line",
        "s3.region": "environment",
        "s3.endpoint": str(tmp_path / "holdfast.toml"),
        "retry.attempts": str(tmp_path / "holdfast.toml"),
    }


def test_text_becomes_the_type_of_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {
        "HOLDFAST_S3__ALLOW_HTTP": "true",
        "HOLDFAST_RETRY__DEADLINE_MS": "1500",
        "HOLDFAST_CACHE__DIR": "~/cache",
        "HOLDFAST_CACHE__MAX_BYTES": "2GiB",
    }
    settings = load(environ=environ, folder=tmp_path)
    assert (settings.s3.allow_http, settings.retry.deadline_ms) == (True, 1500)
    assert (settings.cache.dir, settings.cache.max_bytes) == (tmp_path / "cache", 2 * 1024**3)
    with pytest.raises(Invalid, match=r"^environment: cache\.dir: .*home directory"):
        load(environ={"HOLDFAST_CACHE__DIR": "~no-such-user/cache"}, folder=tmp_path)


def test_the_file_may_be_named_by_flag_or_variable(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    named = write(tmp_path / "elsewhere", 'store = "file:named"\n')
    write(tmp_path, 'store = "file:default"\n')
    variable = {"HOLDFAST_CONFIG": str(named)}
    assert load(environ=variable, folder=tmp_path).store.uri == "file:named"
    assert load(environ={}, config=named, folder=tmp_path).store.uri == "file:named"
    assert load(environ={"HOLDFAST_CONFIG": ""}, folder=tmp_path).store.uri == "file:default"
    assert load(environ={"HOLDFAST_STORE": "memory:"}, folder=tmp_path).store.uri == "memory:"
    (tmp_path / "holdfast.toml").unlink()
    unset = {"HOLDFAST_STORE": "", "HOLDFAST_S3__REGION": ""}
    assert load(environ=unset, folder=tmp_path) == Settings()
    assert Settings().store.uri == DEFAULT_STORE
    with pytest.raises(NotFound, match=r"missing\.toml does not exist"):
        load(environ={}, config=tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("[s3]\nendpiont = 'x'\n", "unknown setting s3.endpiont", "did you mean endpoint?"),
        ("[sotre]\nuri = 'x'\n", "unknown setting sotre", "did you mean store?"),
        ("[cache]\nqqqq = 1\n", "unknown setting cache.qqqq", "known here: dir, max_bytes"),
        ("[retry]\nattempts = 'many'\n", "retry.attempts: Input should be a valid integer", "correct"),
        ("[retry]\nattempts = 0\n", "retry.attempts: Input should be greater than or equal to 1", "correct"),
        ("[s3]\nsse = 'rot13'\n", "s3.sse: Input should be 'none', 'AES256' or 'aws:kms'", "correct"),
        (
            "[ingest]\nlive_bytes = '5quux'\n",
            "ingest.live_bytes: this is not a number of bytes",
            "write 268435456 or 256MiB",
        ),
        ("[ingest]\nlisten = ''\n", "ingest.listen: this is empty", "correct"),
        (
            '[ingest]\ncollector_id = "a\\tb"\n',
            "ingest.collector_id: it contains characters that cannot be printed",
            "correct",
        ),
        ("store = ''\n", "store.uri: this is empty", "name a store, such as file:data or s3://bucket/prefix"),
        ("s3 = 7\n", "s3: this must be a table", "write [s3]"),
        ("[s3\n", "is not TOML", "fix the file"),
    ],
)
def test_an_invalid_file_is_reported_in_one_line(tmp_path: Path, text: str, message: str, remedy: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(Invalid) as caught:
        load(environ={}, folder=tmp_path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert remedy in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HOLDFAST_STOR", "HOLDFAST_STORE"),
        ("HOLDFAST_STORE_URI", "HOLDFAST_STORE__URI"),
        ("HOLDFAST_S3_ENDPOINT", "HOLDFAST_S3__ENDPOINT"),
    ],
)
def test_a_misspelt_variable_is_refused(tmp_path: Path, name: str, meant: str) -> None:
    with pytest.raises(Invalid, match=r"^environment: unknown setting s3\.endpiont\n"):
        load(environ={"HOLDFAST_S3__ENDPIONT": "x"}, folder=tmp_path)
    with pytest.raises(Invalid, match=f"unknown variable {name}") as caught:
        load(environ={name: "x"}, folder=tmp_path)
    assert caught.value.remedy == f"did you mean {meant}?"
    assert load(environ={name: "", "HOLDFAST_ELSEWHERE": "x"}, folder=tmp_path) == load(environ={}, folder=tmp_path)


def test_secrets_appear_in_no_text_and_one_layer_may_not_give_two_forms(tmp_path: Path) -> None:
    write(tmp_path, "[s3]\nsecret_access_key_file = 'nowhere'\n")
    environ = {"HOLDFAST_S3__SECRET_ACCESS_KEY": "hunter2", "HOLDFAST_S3__SESSION_TOKEN": "tok3n"}
    settings = load(environ=environ, folder=tmp_path)
    texts = (repr(settings), str(settings), settings.model_dump_json(), repr(settings.s3.secret_access_key))
    assert not [text for text in texts if "hunter2" in text or "tok3n" in text]
    assert settings.s3.secret_access_key is not None
    assert settings.s3.secret_access_key.get_secret_value() == "hunter2"
    assert settings.s3.secret_access_key_file is None, "the environment overrides the file"
    for name in ("HOLDFAST_S3__SECRET_ACCESS_KEY", "HOLDFAST_GC__SESSION_TOKEN"):
        with pytest.raises(Invalid, match="both set"):
            load(environ={name: "x", f"{name}_FILE": "nowhere"}, folder=tmp_path / "elsewhere")


def test_another_access_key_is_not_combined_with_the_secrets_of_a_lower_layer(tmp_path: Path) -> None:
    """The secret and the token of one identity never go with the name of another."""
    (tmp_path / "of A").write_text("of A")
    files = f"secret_access_key_file = '{tmp_path}/of A'\nsession_token_file = '{tmp_path}/of A'\n"
    write(tmp_path, f"[s3]\naccess_key_id = 'A'\n{files}")
    token_of_a = load(environ={}, folder=tmp_path).s3.session_token
    assert token_of_a is not None
    assert token_of_a.get_secret_value() == "of A"
    both = {"HOLDFAST_S3__ACCESS_KEY_ID": "B", "HOLDFAST_S3__SECRET_ACCESS_KEY": "of B"}
    s3 = load(environ=both, folder=tmp_path).s3
    assert s3.secret_access_key is not None
    assert (s3.secret_access_key.get_secret_value(), s3.session_token) == ("of B", None)
    assert load(environ={"HOLDFAST_S3__ACCESS_KEY_ID": "B"}, folder=tmp_path).s3.secret_access_key is None
    secret_alone = load(environ={"HOLDFAST_S3__SECRET_ACCESS_KEY": "of A too"}, folder=tmp_path).s3
    assert secret_alone.access_key_id == "A"


SECRETS = [(section, key) for section in ("s3", "gc") for key in ("secret_access_key", "session_token")]


@pytest.mark.parametrize(("section", "key"), SECRETS)
def test_a_secret_comes_from_the_environment_or_a_file_of_its_own(tmp_path: Path, section: str, key: str) -> None:
    path = write(tmp_path, f"[{section}]\n{key} = 'hunter2'\n")
    variable = f"HOLDFAST_{section}__{key}".upper()
    with pytest.raises(Invalid, match=rf"^{re.escape(str(path))}: {section}\.{key} is a secret") as caught:
        load(environ={variable: "another"}, folder=tmp_path)
    assert f"{section}.{key}_file" in str(caught.value.remedy)
    assert variable in str(caught.value.remedy)
    assert "hunter2" not in f"{caught.value} {caught.value.remedy}"
    with pytest.raises(Invalid, match=r"^command line: .* is a secret"):
        load(environ={}, folder=tmp_path / "elsewhere", flags={section: {key: "hunter2"}})
    secret = tmp_path / "secret"
    write(tmp_path, f"[{section}]\n{key}_file = '{secret}'\n")
    for text, message in ((None, "secret cannot be read: No such file"), ("\n", rf"{section}\.{key}_file .* is empty")):
        if text is not None:
            secret.write_text(text)
        with pytest.raises(Invalid, match=message):
            load(environ={}, folder=tmp_path)
    secret.write_text("hunter2\n")
    assert getattr(getattr(load(environ={}, folder=tmp_path), section), key).get_secret_value() == "hunter2"


def test_no_other_setting_is_a_secret() -> None:
    found = [
        (section, key)
        for section, model in Settings()
        for key, field in type(model).model_fields.items()
        if "SecretStr" in str(field.annotation)
    ]
    assert found == SECRETS
