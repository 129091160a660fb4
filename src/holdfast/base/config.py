"""Typed settings from flags, environment, file and defaults, in that order of precedence.

A file is TOML: one table per section. The environment variable of a setting is ``HOLDFAST_<SECTION>__<KEY>``, and
``HOLDFAST_STORE`` is short for ``HOLDFAST_STORE__URI``. An unknown key is an error that names its source and suggests
the nearest known key, so that a misspelt setting is not ignored. Secrets are ``SecretStr``: they appear in no repr, log
line or error message. They come from the environment or from files of their own. Settings files and command lines may
not contain them, because files are passed on, and other users can see command lines.

A package with settings adds a section here and a field to ``Settings``. Only this module reads the environment: an
entry point calls ``load`` once and passes the values on.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo

from holdfast.base.errors import Invalid, NotFound

DEFAULT_STORE = "file:.holdfast"
REQUESTS_IN_FLIGHT = 256
DEFAULT_FILE = "holdfast.toml"
PREFIX = "HOLDFAST_"
CONFIG_VARIABLE = "HOLDFAST_CONFIG"
STORE_VARIABLE = "HOLDFAST_STORE"
NAME_A_STORE = "name a store, such as file:data or s3://bucket/prefix"

# Settings that a layer removes from those with lower precedence: another form of the same secret, and the secrets of
# another identity.
_DISPLACED = {
    "secret_access_key": ("secret_access_key_file",),
    "secret_access_key_file": ("secret_access_key",),
    "session_token": ("session_token_file",),
    "session_token_file": ("session_token",),
    "access_key_id": ("secret_access_key", "secret_access_key_file", "session_token", "session_token_file"),
}
ENVIRONMENT = "environment"
UNKNOWN = "this is unknown"
"""The problem of a value that no field has a name for."""

_Tree = dict[str, Any]


def _expand_home(path: Path) -> Path:
    """``~`` is the home directory, as in a shell and in the URI of a store."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{error}") from error


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("it contains characters that cannot be printed")
    return name


_Path = Annotated[Path, AfterValidator(_expand_home)]
_Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_printable)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class StoreSection(Section):
    """The store that commands and services use."""

    uri: str = Field(default=DEFAULT_STORE, min_length=1)
    requests_in_flight: int = Field(default=REQUESTS_IN_FLIGHT, ge=1)
    """Requests that one client of a cloud store has in flight at most; further ones wait."""


class S3Section(Section):
    """Access to ``s3://`` stores. Unset values come from the URI or from the usual AWS environment variables."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    secret_access_key_file: _Path | None = None
    session_token: SecretStr | None = None
    session_token_file: _Path | None = None
    allow_http: bool | None = None
    virtual_hosted_style: bool | None = None
    sse: Literal["none", "AES256", "aws:kms"] = "none"
    sse_kms_key_id: str | None = None


class RetrySection(Section):
    """Retries of requests. Delays double from ``base_ms`` up to ``max_ms``, with jitter."""

    attempts: int = Field(default=6, ge=1)
    base_ms: int = Field(default=50, ge=0)
    max_ms: int = Field(default=5_000, ge=0)
    deadline_ms: int = Field(default=60_000, ge=0)


class CacheSection(Section):
    """The disk cache of immutable objects; off while ``dir`` is unset. ``max_bytes`` may be written as ``10GiB``."""

    dir: _Path | None = None
    max_bytes: ByteSize = Field(default=ByteSize(10 * 1024**3), gt=0)


class OntologySection(Section):
    """Ontology sessions. Names and defaults are those of the specification of the stores."""

    s3_region: str | None = None
    s3_endpoint_url: str | None = None
    s3_lock_timeout_ms: int = Field(default=5_000, ge=0)
    s3_lease_ttl_ms: int = Field(default=30_000, ge=100)
    s3_request_timeout_s: float = Field(default=10.0, gt=0)
    s3_duckdb_memory_limit: str = Field(default="256MB", min_length=1)
    compaction: Literal["auto", "off"] = "auto"


class BusSection(Section):
    """Events and their handlers. Names and defaults are those of the specification of the stores."""

    event_lease_ms: int = Field(default=30_000, ge=100)
    event_max_attempts: int = Field(default=10, ge=1)
    event_backoff_base_ms: int = Field(default=250, ge=0)
    event_backoff_max_ms: int = Field(default=30_000, ge=0)
    event_jitter_ms: int = Field(default=100, ge=0)
    event_retention_days: float = Field(default=7.0, gt=0)
    event_max_chain_depth: int = Field(default=20, ge=0)
    event_poll_ms: int = Field(default=1_000, ge=1)
    event_claim_limit: int = Field(default=100, ge=1)
    session_heartbeat_ms: int = Field(default=5_000, ge=1)
    session_ttl_ms: int = Field(default=60_000, ge=1)


class IngestSection(Section):
    """Collectors of telemetry. The first names are those of the specification. Command line options take precedence."""

    acceptance: Literal["s3_manifest", "local_spool"] = "s3_manifest"
    object_landing_interval_ms: int = Field(default=1_000, ge=1)
    listen: str = Field(default="127.0.0.1:8080", min_length=1)
    private: str = Field(default="127.0.0.1:8081", min_length=1)
    private_names: str = ""
    """Host names of the private listener besides localhost and IP addresses, separated by commas."""
    tokens: _Path | None = None
    spool: _Path | None = None
    collector_id: _Name | None = None
    authority_id: str | None = None
    tls_certificate_file: _Path | None = None
    tls_key_file: _Path | None = None
    frame_bytes: ByteSize = Field(default=ByteSize(8 * 1024**2), gt=0)
    payload_bytes: ByteSize = Field(default=ByteSize(64 * 1024**2), gt=0, lt=2**31)
    in_flight_bytes: ByteSize = Field(default=ByteSize(512 * 1024**2), gt=0)
    connections: int = Field(default=1_000, ge=1)
    requests_per_s: float = Field(default=1_000.0, gt=0)
    concurrency: int = Field(default=64, ge=1)
    header_timeout_ms: int = Field(default=10_000, ge=1)
    body_timeout_ms: int = Field(default=30_000, ge=1)
    accept_timeout_ms: int = Field(default=20_000, ge=1)
    read_timeout_ms: int = Field(default=30_000, ge=1)
    drain_ms: int = Field(default=20_000, ge=0)
    live_bytes: ByteSize = Field(default=ByteSize(128 * 1024**2), ge=0)
    live_window_s: int = Field(default=900, ge=1)
    follow_interval_ms: int = Field(default=1_000, ge=1)
    spool_notes_s: int = Field(default=2_592_000, ge=60)
    holds_refresh_ms: int = Field(default=2_000, ge=1)
    max_age_s: int = Field(default=5_184_000, ge=3_600)
    """The greatest age of a record at acceptance; never more than ``retention.raw_batches_s``."""
    backfill: bool = False
    """Accept records of any age."""
    hours_per_batch: int = Field(default=168, ge=1)
    """The most different hours of the records of a batch."""
    retry_horizon_s: int = Field(default=604_800, ge=0)
    """How long an agent may resend a batch. Garbage collection keeps younger blobs."""


class PipelineSection(Section):
    """The jobs that derive data from accepted batches. Command line options take precedence."""

    master: str = Field(default="local[*]", min_length=1)
    windows: str = Field(default="10s,1m,5m,1h,1d", min_length=1)
    full_scan_every_s: int = Field(default=86_400, ge=0)
    settle_s: int = Field(default=300, ge=0)
    merge_after_s: int = Field(default=86_400, ge=0)
    memory: ByteSize = Field(default=ByteSize(256 * 1000**2), ge=128 * 1000**2)
    """For the joins and sorts of a job in one process; Spark has settings of its own."""
    records_per_unit: int = Field(default=2_000_000, ge=1)
    batches_at_once: int = Field(default=20_000, ge=1)
    stale_hours: int = Field(default=3, ge=1)
    lease_ttl_ms: int = Field(default=30_000, ge=100)


class LogSource(Section):
    """A log file whose lines an agent sends. ``path`` may be a glob such as ``/var/log/app/*.log``."""

    path: str = Field(min_length=1)
    from_start: bool = False
    attributes: dict[str, str] = Field(default_factory=dict)


class AlertRule(Section):
    """An alert that an agent raises: a metric is above or below a bound for ``for_ms``."""

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
    """Agents on hosts. Command line options take precedence."""

    interval_ms: int = Field(default=10_000, ge=100)
    batch_ms: int = Field(default=30_000, ge=0)
    batch_records: int = Field(default=5_000, ge=1, le=100_000)
    queue_max_bytes: ByteSize = Field(default=ByteSize(1024**3), ge=1024**2)
    window: int = Field(default=4, ge=1, le=64)
    request_timeout_ms: int = Field(default=30_000, ge=1)
    parked_retry_ms: int = Field(default=300_000, ge=100)
    drain_ms: int = Field(default=10_000, ge=0)
    processes: int = Field(default=8, ge=0, le=8)
    host: bool = True
    ca_file: _Path | None = None
    unsafe_plain_http: bool = False
    """Allow collectors on other machines over plain HTTP, which sends the agent's token unencrypted."""
    logs: tuple[LogSource, ...] = ()
    rules: tuple[AlertRule, ...] = ()


class GcSection(Section):
    """Garbage collection: its credentials and its grace period. Command line options take precedence."""

    apply: bool = False
    """Whether the job deletes anything when the pipeline runs it."""
    every_s: int = Field(default=86_400, ge=1)
    grace_s: int = Field(default=3_600, ge=0)
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    secret_access_key_file: _Path | None = None
    session_token: SecretStr | None = None
    session_token_file: _Path | None = None


class RetentionSection(Section):
    """How long each kind of data is kept, in seconds; for ever if unset."""

    raw_batches_s: int | None = Field(default=None, ge=1)
    logs_s: int | None = Field(default=None, ge=1)
    rollups: str = ""
    """Windows, and how long the chunks of each are kept: ``10s=30d,1m=90d``."""
    runs_s: int | None = Field(default=None, ge=1)
    events_s: int | None = Field(default=None, ge=1)
    records_s: int | None = Field(default=None, ge=1)
    """Runs of the pipeline's own jobs, and the records of deletions."""


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

    @model_validator(mode="after")
    def _check_ages(self) -> "Settings":
        """Batches must not be removed, which closes their hours, while records of these hours are still accepted."""
        kept_s, age_s = self.retention.raw_batches_s, self.ingest.max_age_s
        if kept_s is None or age_s <= kept_s:
            return self
        if "max_age_s" in self.ingest.model_fields_set:
            raise ValueError(
                f"ingest.max_age_s is {age_s}, and retention.raw_batches_s is {kept_s}: batches would be removed while "
                "records of their hours are still accepted; set ingest.max_age_s to at most that"
            )
        object.__setattr__(self, "ingest", self.ingest.model_copy(update={"max_age_s": kept_s}))
        return self


class Resolved(NamedTuple):
    settings: Settings
    sources: dict[str, str]
    """``section.key`` -> the source of its value; a default has no entry."""


def load(
    *,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Settings for one process. ``config`` is the file to read; by default that in ``HOLDFAST_CONFIG``, else
    ``holdfast.toml`` in ``folder`` (the current directory) if it exists. ``Invalid``; ``NotFound`` if ``config`` or the
    file in ``HOLDFAST_CONFIG`` does not exist.
    """
    return resolve(flags=flags, config=config, environ=environ, folder=folder).settings


def resolve(
    *,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Resolved:
    """Like ``load``, with the source of every value that is not a default."""
    variables = os.environ if environ is None else environ
    path = _find_file(config, variables, folder or Path())
    layers: list[tuple[str, _Tree]] = []
    if path is not None:
        layers.append((str(path), _read_file(path)))
    layers.append((ENVIRONMENT, _from_environment(variables)))
    layers.append(("command line", {section: dict(values) for section, values in (flags or {}).items()}))

    merged: _Tree = {}
    for source, layer in layers:
        if source != ENVIRONMENT:
            _reject_secrets(source, layer)
        _overlay(merged, layer)
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise _explain(error, layers) from None
    sources = {f"{section}.{key}": _source_of((section, key), layers) for section in merged for key in merged[section]}
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
        if name.startswith(PREFIX) and value:  # an empty variable counts as unset, as in shells and service files
            if separator:
                tree.setdefault(section.lower(), {})[key.lower()] = value
            else:
                _reject_near_miss(name)
    return tree


def _reject_near_miss(name: str) -> None:
    """Other programs may use variables with our prefix, but one that looks like a misspelt setting is refused."""
    corrected = {
        f"{PREFIX}{section}_{key}".upper(): f"{PREFIX}{section}__{key}".upper()
        for section in Settings.model_fields
        for key in _fields_of(section)
    }
    short = (STORE_VARIABLE, CONFIG_VARIABLE)
    near = [corrected[name]] if name in corrected else get_close_matches(name, short, n=1, cutoff=0.9)
    if near and name not in short:
        raise Invalid(f"environment: unknown variable {name}", remedy=f"did you mean {near[0]}?")


def _overlay(below: _Tree, above: _Tree) -> None:
    for section, values in above.items():
        target = below.setdefault(section, {})
        if isinstance(values, dict) and isinstance(target, dict):
            for displaced in (name for key in values for name in _DISPLACED.get(key, ())):
                target.pop(displaced, None)
            target.update(values)
        else:
            below[section] = values  # validation reports it


def _reject_secrets(source: str, layer: _Tree) -> None:
    for section, values in layer.items():
        for key in _secrets_of(section):
            if isinstance(values, dict) and key in values:
                variable = f"{PREFIX}{section}__{key}".upper()
                raise Invalid(
                    f"{source}: {section}.{key} is a secret, which may not be in a settings file or on a command line",
                    remedy=f"put it into a file of its own and set {section}.{key}_file to its path, or set {variable}",
                )


def _fields_of(section: str) -> dict[str, FieldInfo]:
    field = Settings.model_fields.get(section)
    model = field.annotation if field is not None else None
    return model.model_fields if isinstance(model, type) and issubclass(model, Section) else {}


def _secrets_of(section: str) -> list[str]:
    return [key for key, field in _fields_of(section).items() if SecretStr in get_args(field.annotation)]


def _explain(error: ValidationError, layers: list[tuple[str, _Tree]]) -> Invalid:
    """The first problem in one line, with the source of the rejected value."""
    where, what, remedy = problem_in(error)
    source, name = _source_of(where, layers), ".".join(where)
    if what == UNKNOWN:
        known = list(_fields_of(where[0]) if len(where) > 1 else Settings.model_fields)
        near = get_close_matches(where[-1], known, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return Invalid(f"{source}: unknown setting {name}", remedy=remedy)
    if not where:  # settings that contradict each other: the message names them
        return Invalid(f"{source}: {what}", remedy=remedy or "change one of them")
    remedy = NAME_A_STORE if name == "store.uri" else remedy
    return Invalid(f"{source}: {name}: {what}", remedy=remedy or "correct this value")


def problem_in(error: ValidationError) -> tuple[tuple[str, ...], str, str | None]:
    """The first problem: the path of the value, what is wrong, and a remedy if there is one."""
    problem = error.errors(include_url=False)[0]  # of its input, only numbers are shown: others may be secrets
    where = tuple(str(part) for part in problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            return where, UNKNOWN, None
        case "model_type" if len(where) == 1:
            return where, "this must be a table of settings", f"write [{where[0]}] in the file"
        case "byte_size" | "byte_size_unit":
            return where, "this is not a number of bytes", "write 268435456 or 256MiB"
        case "string_too_short":
            return where, "this is empty", None
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return where, f"{problem['msg']}, got {problem['input']}", None
        case _:
            return where, problem["msg"].removeprefix("Value error, "), None


def _source_of(where: Sequence[str], layers: list[tuple[str, _Tree]]) -> str:
    """The layer of highest precedence that has the setting, or the section, at this path."""
    for source, layer in reversed(layers):
        values = layer.get(where[0]) if where else None
        if values is not None and (len(where) == 1 or not isinstance(values, dict) or where[1] in values):
            return source
    return "settings"


def _with_secrets_from_files(settings: Settings) -> Settings:
    """Fill in the secrets that sections name files for."""
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
    remedy = "set it to the path of a readable file that contains only the secret"
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise Invalid(f"{setting} {path} cannot be read: {reason}", remedy=remedy) from error
    if not secret:
        raise Invalid(f"{setting} {path} is empty", remedy=remedy)
    return secret


def _with_ontology_names(settings: Settings) -> Settings:
    """If region and endpoint are unset, use those under the specification's names."""
    s3, ontology = settings.s3, settings.ontology
    filled = s3.model_copy(
        update={"region": s3.region or ontology.s3_region, "endpoint": s3.endpoint or ontology.s3_endpoint_url}
    )
    return settings if filled == s3 else settings.model_copy(update={"s3": filled})
