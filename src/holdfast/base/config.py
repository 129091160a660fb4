"""Typed settings from flags, environment, file and defaults, in that order of precedence.

A file is TOML: one table per section. The environment spells the same key ``HOLDFAST_<SECTION>__<KEY>``, and
``HOLDFAST_STORE`` is short for ``HOLDFAST_STORE__URI``. A key that no section has is an error that names it, says where
it was found and suggests the nearest, because a misspelt setting that is silently ignored is a fault found in
production. Secrets are ``SecretStr``: they appear in no repr, log line or error message. They come from the environment
or from files of their own; a settings file and a command line hold none, since the one is passed on, the other seen.

A room that needs settings of its own adds a section to ``sections``, and a field of ``Settings``. Nothing below
this module reads the environment; whoever is at the edge calls ``load`` once and passes values on.
"""

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import SecretStr, ValidationError

from holdfast.base.errors import Invalid, NotFound
from holdfast.base.sections import (
    DEFAULT_STORE,
    REQUESTS_IN_FLIGHT,
    AgentSection,
    AlertRule,
    BusSection,
    CacheSection,
    GcSection,
    IngestSection,
    LogSource,
    OntologySection,
    PipelineSection,
    RetentionSection,
    RetrySection,
    S3Section,
    Section,
    StoreSection,
)

__all__ = [
    "DEFAULT_STORE",
    "REQUESTS_IN_FLIGHT",
    "AgentSection",
    "AlertRule",
    "BusSection",
    "CacheSection",
    "GcSection",
    "IngestSection",
    "LogSource",
    "OntologySection",
    "PipelineSection",
    "Resolved",
    "RetentionSection",
    "RetrySection",
    "S3Section",
    "Section",
    "Settings",
    "StoreSection",
    "load",
    "resolve",
]

DEFAULT_FILE = "holdfast.toml"
PREFIX = "HOLDFAST_"
CONFIG_VARIABLE = "HOLDFAST_CONFIG"
STORE_VARIABLE = "HOLDFAST_STORE"
NAME_A_STORE = "name a store, such as file:data or s3://bucket/prefix"

# What a layer sets aside of those below it: the other spelling of a setting, and what belongs to another identity.
_DISPLACED = {
    "secret_access_key": ("secret_access_key_file",),
    "secret_access_key_file": ("secret_access_key",),
    "session_token": ("session_token_file",),
    "session_token_file": ("session_token",),
    "access_key_id": ("secret_access_key", "secret_access_key_file", "session_token", "session_token_file"),
}
ENVIRONMENT = "environment"

_Tree = dict[str, Any]


class Settings(Section):
    store: StoreSection = StoreSection()
    s3: S3Section = S3Section()
    retry: RetrySection = RetrySection()
    cache: CacheSection = CacheSection()
    ontology: OntologySection = OntologySection()
    bus: BusSection = BusSection()
    ingest: IngestSection = IngestSection()
    agent: AgentSection = AgentSection()
    pipeline: PipelineSection = PipelineSection()
    gc: GcSection = GcSection()
    retention: RetentionSection = RetentionSection()


class Resolved(NamedTuple):
    settings: Settings
    sources: dict[str, str]  # "section.key" -> where its value came from; a default has no entry


def load(
    *,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Settings for one process. ``config`` is the file to read; without it ``HOLDFAST_CONFIG``, then ``holdfast.toml``
    in ``folder`` (the current one) if it is there. Raises ``Invalid``, or ``NotFound`` for a file that was asked for.
    """
    return resolve(flags=flags, config=config, environ=environ, folder=folder).settings


def resolve(
    *,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Resolved:
    """As ``load``, with the origin of every value that is not a default."""
    variables = os.environ if environ is None else environ
    path = _find_file(config, variables, folder or Path())
    layers: list[tuple[str, _Tree]] = []
    if path is not None:
        layers.append((str(path), _read_file(path)))
    layers.append((ENVIRONMENT, _from_environment(variables)))
    layers.append(("command line", {section: dict(values) for section, values in (flags or {}).items()}))

    merged: _Tree = {}
    for source, layer in layers:
        _reject_unknown(source, layer)
        if source != ENVIRONMENT:
            _reject_secrets(source, layer)
        _overlay(merged, layer)
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise _explain(error, layers) from None
    sources = {
        f"{section}.{key}": _source_of(section, key, layers) for section, values in merged.items() for key in values
    }
    return Resolved(_with_ontology_names(_with_secrets_from_files(settings)), sources)


def _find_file(config: Path | None, variables: Mapping[str, str], folder: Path) -> Path | None:
    if config is not None:
        return config
    if named := variables.get(CONFIG_VARIABLE):
        return Path(named)
    default = folder / DEFAULT_FILE
    return default if default.is_file() else None


def _read_file(path: Path) -> _Tree:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(
            f"configuration file {path} does not exist", remedy="check --config or HOLDFAST_CONFIG"
        ) from None
    except OSError as error:
        raise Invalid(f"configuration file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"configuration file {path} is not TOML: {error}", remedy="fix the file") from error
    return _with_store_table(tree)


def _with_store_table(tree: _Tree) -> _Tree:
    """``store = "URI"`` is short for ``[store] uri = "URI"``."""
    if isinstance(tree.get("store"), str):
        return {**tree, "store": {"uri": tree["store"]}}
    return tree


def _from_environment(variables: Mapping[str, str]) -> _Tree:
    tree: _Tree = {}
    if uri := variables.get(STORE_VARIABLE):
        tree["store"] = {"uri": uri}
    for name, value in sorted(variables.items()):
        section, separator, key = name.removeprefix(PREFIX).partition("__")
        # An empty variable counts as unset, as shells and service files treat it.
        if name.startswith(PREFIX) and value:
            if separator:
                tree.setdefault(section.lower(), {})[key.lower()] = value
            else:
                _reject_near_miss(name)
    return tree


def _reject_near_miss(name: str) -> None:
    """A variable that means nothing here may be anybody's; but one with a slip in it would be silently ignored."""
    meant = {
        f"{PREFIX}{section}_{key}".upper(): f"{PREFIX}{section}__{key}".upper()
        for section, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        for key in field.annotation.model_fields
    }
    shorts = (STORE_VARIABLE, CONFIG_VARIABLE)
    near = [meant[name]] if name in meant else get_close_matches(name, shorts, n=1, cutoff=0.9)
    if near and name not in shorts:
        raise Invalid(f"environment: unknown variable {name}", remedy=f"did you mean {near[0]}?")


def _overlay(below: _Tree, above: _Tree) -> None:
    for section, values in above.items():
        target = below.setdefault(section, {})
        for displaced in (name for key in values for name in _DISPLACED.get(key, ())):
            target.pop(displaced, None)
        target.update(values)


def _reject_unknown(source: str, layer: _Tree) -> None:
    sections = Settings.model_fields
    for section, values in layer.items():
        if section not in sections:
            raise _unknown(source, section, section, list(sections))
        model = sections[section].annotation
        if not isinstance(values, dict):
            raise Invalid(f"{source}: {section} must be a table of settings", remedy=f"write [{section}] in the file")
        if isinstance(model, type) and issubclass(model, Section):
            for key in values:
                if key not in model.model_fields:
                    raise _unknown(source, f"{section}.{key}", key, list(model.model_fields))


def _reject_secrets(source: str, layer: _Tree) -> None:
    for section, values in layer.items():
        for key in _secrets_of(section):
            if key in values:
                variable = f"{PREFIX}{section}__{key}".upper()
                raise Invalid(
                    f"{source}: {section}.{key} is a secret, which stands in no settings file and on no command line",
                    remedy=f"put it into a file of its own and name that as {section}.{key}_file, or set {variable}",
                )


def _secrets_of(section: str) -> list[str]:
    model = Settings.model_fields[section].annotation
    fields = model.model_fields if isinstance(model, type) and issubclass(model, Section) else {}
    return [key for key, field in fields.items() if SecretStr in get_args(field.annotation)]


def _unknown(source: str, full: str, key: str, known: list[str]) -> Invalid:
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return Invalid(f"{source}: unknown setting {full}", remedy=remedy)


def _explain(error: ValidationError, layers: list[tuple[str, _Tree]]) -> Invalid:
    """The first problem in one line, with the layer that the rejected value came from."""
    where, what, remedy = problem_in(error)
    section, key = (*where, "")[:2]
    source = _source_of(section, key, layers)
    name = ".".join(where)
    remedy = NAME_A_STORE if name == "store.uri" else remedy
    return Invalid(f"{source}: {name}: {what}", remedy=remedy or "correct this value")


def problem_in(error: ValidationError) -> tuple[tuple[str, ...], str, str | None]:
    """The first problem: which value has it, what it is, and what to do where that can be said."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = tuple(str(part) for part in problem["loc"])
    match problem["type"]:
        case "byte_size" | "byte_size_unit":
            return where, "this is no number of bytes", "write 268435456 or 256MiB"
        case "string_too_short":
            return where, "this is empty", None
        case _:
            return where, problem["msg"].removeprefix("Value error, "), None


def _source_of(section: str, key: str, layers: list[tuple[str, _Tree]]) -> str:
    return next((name for name, layer in reversed(layers) if key in layer.get(section, {})), "settings")


def _with_secrets_from_files(settings: Settings) -> Settings:
    """Wherever a section names a file that holds a secret of its, the secret itself."""
    return settings.model_copy(update={name: _filled(name, getattr(settings, name)) for name in ("s3", "gc")})


def _filled(name: str, section: "S3Section | GcSection") -> "S3Section | GcSection":
    found: dict[str, SecretStr] = {}
    for key in _secrets_of(name):
        path: Path | None = getattr(section, f"{key}_file")
        if path is None:
            continue
        if getattr(section, key) is not None:
            raise Invalid(f"{name}.{key} and {name}.{key}_file are both set", remedy="keep one of the two")
        found[key] = SecretStr(_read_secret(f"{name}.{key}_file", path))
    return section.model_copy(update=found)


def _read_secret(setting: str, path: Path) -> str:
    remedy = "point it at a readable file that holds the secret and nothing else"
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise Invalid(f"{setting} {path} cannot be read: {reason}", remedy=remedy) from error
    if not secret:
        raise Invalid(f"{setting} {path} is empty", remedy=remedy)
    return secret


def _with_ontology_names(settings: Settings) -> Settings:
    """The specification's names for where an S3 store is stand in where ours are unset."""
    s3, ontology = settings.s3, settings.ontology
    filled = s3.model_copy(
        update={"region": s3.region or ontology.s3_region, "endpoint": s3.endpoint or ontology.s3_endpoint_url}
    )
    return settings if filled == s3 else settings.model_copy(update={"s3": filled})
