"""The sections of the settings: one frozen model each, with defaults and bounds. ``config`` reads them.

A room that needs settings of its own adds a section here, and a field of ``config.Settings``.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, SecretStr, model_validator

DEFAULT_STORE = "file:.holdfast"
REQUESTS_IN_FLIGHT = 256


def _at_home(path: Path) -> Path:
    """``~`` means what it means in a shell, and in the URI of a store."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{error}") from error


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("it has characters that cannot be printed")
    return name


_Path = Annotated[Path, AfterValidator(_at_home)]
_Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_printable)]


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
    session_token_file: _Path | None = None
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
    private_names: str = ""
    """Host names, separated by commas, that the private listener answers for besides localhost and IP addresses."""
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
    burst: int = Field(default=2_000, ge=1)
    concurrency: int = Field(default=64, ge=1)
    header_timeout_ms: int = Field(default=10_000, ge=1)
    body_timeout_ms: int = Field(default=30_000, ge=1)
    accept_timeout_ms: int = Field(default=20_000, ge=1)
    read_timeout_ms: int = Field(default=30_000, ge=1)
    drain_ms: int = Field(default=20_000, ge=0)
    live_bytes: ByteSize = Field(default=ByteSize(128 * 1024**2), ge=0)
    live_window_s: int = Field(default=900, ge=1)
    follow_interval_ms: int = Field(default=1_000, ge=1)
    mark_interval_ms: int = Field(default=5_000, ge=1)
    spool_notes_s: int = Field(default=2_592_000, ge=60)
    holds_refresh_ms: int = Field(default=2_000, ge=1)
    retry_horizon_s: int = Field(default=604_800, ge=0)
    """How long after its bytes came an agent may still send a batch again: younger blobs are nobody's garbage."""


class PipelineSection(Section):
    """What is derived from accepted batches. The command line goes before all."""

    master: str = Field(default="local[*]", min_length=1)
    windows: str = Field(default="10s,1m,5m,1h,1d", min_length=1)
    overlap_s: int = Field(default=600, ge=0)
    full_scan_every_s: int = Field(default=86_400, ge=0)
    settle_s: int = Field(default=300, ge=0)
    merge_after_s: int = Field(default=86_400, ge=0)
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
    queue_max_bytes: ByteSize = Field(default=ByteSize(1024**3), ge=1024**2)
    window: int = Field(default=4, ge=1, le=64)
    request_timeout_ms: int = Field(default=30_000, ge=1)
    parked_retry_ms: int = Field(default=300_000, ge=100)
    drain_ms: int = Field(default=10_000, ge=0)
    processes: int = Field(default=8, ge=0, le=8)
    host: bool = True
    ca_file: _Path | None = None
    logs: tuple[LogSource, ...] = ()
    rules: tuple[AlertRule, ...] = ()


class GcSection(Section):
    """Garbage collection: whose credentials, and what it leaves alone for how long. The command line goes before."""

    apply: bool = False
    """Whether the job removes anything when it is run as one of the pipeline's."""
    every_s: int = Field(default=86_400, ge=1)
    grace_s: int = Field(default=3_600, ge=0)
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    secret_access_key_file: _Path | None = None
    session_token: SecretStr | None = None
    session_token_file: _Path | None = None


class RetentionSection(Section):
    """How long each kind of data is kept, in seconds; for ever where nothing is said."""

    raw_batches_s: int | None = Field(default=None, ge=1)
    logs_s: int | None = Field(default=None, ge=1)
    rollups: str = ""
    """Windows, each with how long its chunks are kept: ``10s=30d,1m=90d``."""
    runs_s: int | None = Field(default=None, ge=1)
    events_s: int | None = Field(default=None, ge=1)
    records_s: int | None = Field(default=None, ge=1)
    """Runs of the pipeline's own jobs, and the records of what was removed."""
