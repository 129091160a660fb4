"""Where S3 keys come from. The first source that has any wins, and one source gives all of them:

1. the profile that the address of the store names (``?profile=``)
2. the settings (``holdfast.toml``, ``HOLDFAST_S3__...``)
3. ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``
4. the profile in the AWS credentials and config files, if it contains keys
5. a role: web identity, container, or the instance's metadata service, which obstore requests

Keys and token are never mixed: a token in the environment is not sent with keys from a file. A profile that was named
and has no keys (single sign-on, an assumed role) is an error, because another identity would be used silently.
"""

import configparser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import Denied, Invalid
from holdfast.objects.uri import SECRETS, S3Options, StoreSpec

Environ = Mapping[str, str]

_PARTS = SECRETS["s3"]
_ROLE_VARIABLES = {
    "AWS_WEB_IDENTITY_TOKEN_FILE": "the web identity in AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "the container's role",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "the container's role",
}
WHERE_TO_PUT_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or [s3] in holdfast.toml"


@dataclass(frozen=True)
class Keys:
    """One identity. ``source`` names it in messages."""

    source: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    def secrets(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in _PARTS}


@dataclass(frozen=True)
class Unsigned:
    source: str = "no credentials (anonymous)"


@dataclass(frozen=True)
class Role:
    """Keys that obstore fetches and renews."""

    source: str


Credentials = Keys | Unsigned | Role


@dataclass(frozen=True)
class Profile:
    """One section of the AWS files: credentials first, then config. ``named`` unless it is the default one."""

    name: str
    named: bool
    values: Mapping[str, str] = field(repr=False)


def find_credentials(spec: StoreSpec, environ: Environ, read: Callable[[], Profile]) -> Credentials:
    """``read`` returns the profile; it is called only if no earlier source has keys."""
    options = spec.values(S3Options)
    if options.anonymous:
        return Unsigned()
    if options.profile:
        return _of_profile(spec, environ, read())
    if keys := _keys("the keys in the settings", {name: spec.secret(name) for name in _PARTS}):
        return keys
    variables = {name: environ.get(f"AWS_{name.upper()}") for name in _PARTS}
    if keys := _keys("AWS_ACCESS_KEY_ID in the environment", variables):
        return keys
    return _of_profile(spec, environ, read())


def _of_profile(spec: StoreSpec, environ: Environ, profile: Profile) -> Credentials:
    values = {name: profile.values.get(f"aws_{name}") for name in _PARTS}
    if keys := _keys(f"profile {profile.name!r} of the AWS files", values):
        return keys
    if profile.named:
        raise Denied(
            f"{spec.uri}: profile {profile.name!r} contains no keys",
            remedy=f"export them: aws configure export-credentials --profile {profile.name} --format env",
        )
    return _role(spec, environ)


def read_profile(spec: StoreSpec, environ: Environ) -> Profile:
    """The profile that the address or the environment names; otherwise ``default``, which may be missing."""
    named = spec.values(S3Options).profile or environ.get("AWS_PROFILE")
    name = named or "default"
    values: dict[str, str] = {}
    found = False
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", ".aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", name),
    ):
        path = _file(environ, variable, usual)
        if path is not None:
            sections = _read(path)
            found = found or section in sections
            values |= sections.get(section, {})
    if named and not found:
        raise Invalid(
            f"{spec.uri}: no profile {name!r} in the AWS files",
            remedy="check AWS_PROFILE, or create the profile with: aws configure --profile " + name,
        )
    return Profile(name, bool(named), values)


def _keys(source: str, values: Mapping[str, str | None]) -> Keys | None:
    access, secret = values.get("access_key_id"), values.get("secret_access_key")
    if access and secret:
        return Keys(source, access, secret, values.get("session_token") or None)
    if access or secret:
        missing = "the secret key" if access else "the access key id"
        raise Invalid(f"{source}: {missing} is missing", remedy="give both halves, or neither")
    return None


def _role(spec: StoreSpec, environ: Environ) -> Role:
    for variable, source in _ROLE_VARIABLES.items():
        if environ.get(variable):
            return Role(source)
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise Denied(f"{spec.uri}: no credentials were found", remedy=WHERE_TO_PUT_KEYS)
    return Role("the instance's role")


def _file(environ: Environ, variable: str, usual: str) -> Path | None:
    if named := environ.get(variable):
        return Path(named)
    home = environ.get("HOME")
    return Path(home, usual) if home else None


def _read(path: Path) -> dict[str, dict[str, str]]:
    """The sections of one file; none if the file is missing."""
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", remedy="fix its permissions") from error
    except (configparser.Error, UnicodeDecodeError) as error:
        # The parser's own message quotes lines, which may contain secrets.
        raise Invalid(f"{path} is not an AWS settings file", remedy="fix the file, or unset AWS_PROFILE") from error
    return {section: dict(parser.items(section)) for section in parser.sections()}
