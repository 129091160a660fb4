"""Typed settings from flags, environment, file and defaults, in that order of precedence.

A file is TOML: one table per section. The environment spells the same key ``HOLDFAST_<SECTION>__<KEY>``, and
``HOLDFAST_STORE`` is short for ``HOLDFAST_STORE__URI``. A key that no section has is an error that names it, says where
it was found and suggests the nearest, because a misspelt setting that is silently ignored is a fault found in
production. Secrets are ``SecretStr``: they appear in no repr, log line or error message.

A room that needs settings of its own adds a section here: a frozen model, and a field of ``Settings``. Nothing below
this module reads the environment; whoever is at the edge calls ``load`` once and passes values on.
"""

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, SecretStr, ValidationError, model_validator

from holdfast.base.errors import Invalid, NotFound

DEFAULT_FILE = "holdfast.toml"
REQUESTS_IN_FLIGHT = 256
DEFAULT_STORE = "file:.holdfast"
PREFIX = "HOLDFAST_"
CONFIG_VARIABLE = "HOLDFAST_CONFIG"
STORE_VARIABLE = "HOLDFAST_STORE"

# What a layer sets aside of those below it: the other spelling of a setting, and what belongs to another identity.
_DISPLACED = {
    ("s3", "secret_access_key"): ("secret_access_key_file",),
    ("s3", "secret_access_key_file"): ("secret_access_key",),
    ("s3", "access_key_id"): ("secret_access_key", "secret_access_key_file", "session_token"),
}

_Tree = dict[str, Any]


def _at_home(path: Path) -> Path:
    """``~`` means what it means in a shell, and in the URI of a store."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{error}") from error


_Path = Annotated[Path, AfterValidator(_at_home)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class StoreSection(Section):
    """Which store commands and services use."""

    uri: str = Field(default=DEFAULT_STORE, min_length=1)
    requests_in_flight: int = Field(default=REQUESTS_IN_FLIGHT, ge=1)
    """Of one client of a cloud store; more wait for their turn."""


class S3Section(Section):
    """How ``s3://`` stores are reached. What is unset comes from the URI or from the usual AWS environment."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    secret_access_key_file: _Path | None = None
    session_token: SecretStr | None = None
    allow_http: bool | None = None
    virtual_hosted_style: bool | None = None
    sse: Literal["none", "AES256", "aws:kms"] = "none"
    sse_kms_key_id: str | None = None


class RetrySection(Section):
    """How long a request is repeated; delays double from ``base_ms`` up to ``max_ms``, with jitter."""

    attempts: int = Field(default=6, ge=1)
    base_ms: int = Field(default=50, ge=0)
    max_ms: int = Field(default=5_000, ge=0)
    deadline_ms: int = Field(default=60_000, ge=0)


class CacheSection(Section):
    """The disk cache of immutable objects; off while ``dir`` is unset. ``max_bytes`` also takes ``10GiB``."""

    dir: _Path | None = None
    max_bytes: ByteSize = Field(default=ByteSize(10 * 1024**3), gt=0)


class OntologySection(Section):
    """Ontology sessions. The names and defaults are those of the specification that its stores follow."""

    s3_region: str | None = None
    s3_endpoint_url: str | None = None
    s3_lock_timeout_ms: int = Field(default=5_000, ge=0)
    s3_lease_ttl_ms: int = Field(default=30_000, ge=100)
    s3_request_timeout_s: float = Field(default=10.0, gt=0)
    s3_duckdb_memory_limit: str = Field(default="256MB", min_length=1)
    compaction: Literal["off", "threshold", "scheduled"] = "threshold"
    compaction_threshold: int = Field(default=64, ge=2)
    compaction_every_s: float = Field(default=300.0, gt=0)


class BusSection(Section):
    """Events and their handlers. The names and defaults are those of the specification that its stores follow."""

    event_lease_ms: int = Field(default=30_000, ge=100)
    event_max_attempts: int = Field(default=10, ge=1)
    event_backoff_base_ms: int = Field(default=250, ge=0)
    event_backoff_max_ms: int = Field(default=30_000, ge=0)
    event_jitter_ms: int = Field(default=100, ge=0)
    event_retention_days: float = Field(default=7.0, gt=0)
    event_max_chain_depth: int = Field(default=20, ge=0)
    event_poll_ms: int = Field(default=1_000, ge=1)
    event_claim_limit: int = Field(default=100, ge=1)
    event_max_lost_leases: int = Field(default=50, ge=1)
    session_heartbeat_ms: int = Field(default=5_000, ge=1)
    session_ttl_ms: int = Field(default=60_000, ge=1)


class IngestSection(Section):
    """Collectors of telemetry. The first names are those of the specification; the command line goes before all."""

    acceptance: Literal["s3_manifest", "local_spool"] = "s3_manifest"
    object_landing_interval_ms: int = Field(default=1_000, ge=1)
    listen: str = Field(default="127.0.0.1:8080", min_length=1)
    private: str = Field(default="127.0.0.1:8081", min_length=1)
    tokens: _Path | None = None
    spool: _Path | None = None
    collector_id: str | None = Field(default=None, min_length=1, max_length=120)
    authority_id: str | None = None
    tls_certificate_file: _Path | None = None
    tls_key_file: _Path | None = None
    frame_bytes: ByteSize = Field(default=ByteSize(8 * 1024**2), gt=0)
    payload_bytes: ByteSize = Field(default=ByteSize(64 * 1024**2), gt=0, lt=2**31)
    in_flight_bytes: ByteSize = Field(default=ByteSize(512 * 1024**2), gt=0)
    connections: int = Field(default=1_000, ge=1)
    requests_per_s: float = Field(default=1_000.0, gt=0)
    burst: int = Field(default=2_000, ge=1)
    concurrency: int = Field(default=64, ge=1)
    header_timeout_ms: int = Field(default=10_000, ge=1)
    body_timeout_ms: int = Field(default=30_000, ge=1)
    drain_ms: int = Field(default=20_000, ge=0)
    live_bytes: ByteSize = Field(default=ByteSize(128 * 1024**2), ge=0)
    live_window_s: int = Field(default=900, ge=1)
    follow_interval_ms: int = Field(default=1_000, ge=1)


class PipelineSection(Section):
    """What is derived from accepted batches. The command line goes before all."""

    master: str = Field(default="local[*]", min_length=1)
    windows: str = Field(default="10s,1m,5m,1h,1d", min_length=1)
    overlap_s: int = Field(default=600, ge=0)
    settle_s: int = Field(default=300, ge=0)
    records_per_unit: int = Field(default=2_000_000, ge=1)
    batches_at_once: int = Field(default=20_000, ge=1)
    stale_hours: int = Field(default=3, ge=1)
    lease_ttl_ms: int = Field(default=30_000, ge=100)


class LogSource(Section):
    """A log file whose lines an agent sends. ``path`` may be a pattern such as ``/var/log/app/*.log``."""

    path: str = Field(min_length=1)
    from_start: bool = False
    attributes: dict[str, str] = Field(default_factory=dict)


class AlertRule(Section):
    """An alert of an agent's own: a metric is above or below a bound for a while."""

    name: str = Field(min_length=1)
    metric: str = Field(min_length=1)
    labels: dict[str, str] = Field(default_factory=dict)
    above: float | None = None
    below: float | None = None
    rate: bool = False
    for_ms: int = Field(default=0, ge=0)
    message: str = ""

    @model_validator(mode="after")
    def _one_bound(self) -> "AlertRule":
        if (self.above is None) == (self.below is None):
            raise ValueError("a rule has either above or below")
        return self


class AgentSection(Section):
    """Agents on hosts. The command line goes before all."""

    interval_ms: int = Field(default=10_000, ge=100)
    batch_ms: int = Field(default=30_000, ge=0)
    batch_records: int = Field(default=5_000, ge=1, le=100_000)
    queue_max_bytes: ByteSize = Field(default=ByteSize(1024**3), ge=65_536)
    window: int = Field(default=4, ge=1, le=64)
    request_timeout_ms: int = Field(default=30_000, ge=1)
    parked_retry_ms: int = Field(default=300_000, ge=100)
    drain_ms: int = Field(default=10_000, ge=0)
    processes: int = Field(default=8, ge=0, le=8)
    host: bool = True
    ca_file: _Path | None = None
    logs: tuple[LogSource, ...] = ()
    rules: tuple[AlertRule, ...] = ()


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
    layers.append(("environment", _from_environment(variables)))
    layers.append(("command line", {section: dict(values) for section, values in (flags or {}).items()}))

    merged: _Tree = {}
    for source, layer in layers:
        _reject_unknown(source, layer)
        _overlay(merged, layer)
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise _explain(error, layers) from None
    sources = {
        f"{section}.{key}": _source_of(section, key, layers) for section, values in merged.items() for key in values
    }
    return Resolved(_with_ontology_names(_with_secret_from_file(settings)), sources)


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
        for displaced in (name for key in values for name in _DISPLACED.get((section, key), ())):
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


def _unknown(source: str, full: str, key: str, known: list[str]) -> Invalid:
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return Invalid(f"{source}: unknown setting {full}", remedy=remedy)


def _explain(error: ValidationError, layers: list[tuple[str, _Tree]]) -> Invalid:
    """The first problem in one line, with the layer that the rejected value came from."""
    problem = error.errors(include_url=False, include_input=False)[0]
    section, *keys = (str(part) for part in problem["loc"])
    key = keys[0] if keys else ""
    source = _source_of(section, key, layers)
    return Invalid(f"{source}: {'.'.join([section, *keys])}: {problem['msg']}", remedy="correct this value")


def _source_of(section: str, key: str, layers: list[tuple[str, _Tree]]) -> str:
    return next((name for name, layer in reversed(layers) if key in layer.get(section, {})), "settings")


def _with_secret_from_file(settings: Settings) -> Settings:
    s3 = settings.s3
    if s3.secret_access_key_file is None:
        return settings
    if s3.secret_access_key is not None:
        raise Invalid("s3.secret_access_key and s3.secret_access_key_file are both set", remedy="keep one of the two")
    try:
        secret = s3.secret_access_key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise Invalid(
            f"s3.secret_access_key_file {s3.secret_access_key_file} cannot be read: {reason}",
            remedy="point it at a readable file that holds the secret key and nothing else",
        ) from error
    filled = s3.model_copy(update={"secret_access_key": SecretStr(secret)})
    return settings.model_copy(update={"s3": filled})


def _with_ontology_names(settings: Settings) -> Settings:
    """The specification's names for where an S3 store is stand in where ours are unset."""
    s3, ontology = settings.s3, settings.ontology
    filled = s3.model_copy(
        update={"region": s3.region or ontology.s3_region, "endpoint": s3.endpoint or ontology.s3_endpoint_url}
    )
    return settings if filled == s3 else settings.model_copy(update={"s3": filled})
