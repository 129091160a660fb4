"""How a bus behaves: the numbers, and what every part of a namespace shares."""

from dataclasses import dataclass

from holdfast.base.config import BusSection
from holdfast.bus.retry import Retry


@dataclass(frozen=True, slots=True)
class Options:
    lease_ms: int = 30_000
    retry: Retry = Retry()  # noqa: RUF009  # frozen
    heartbeat_ms: int = 5_000
    session_ttl_ms: int = 60_000
    retention_days: float = 7.0
    max_chain_depth: int = 20
    poll_ms: int = 1_000
    claim_limit: int = 100
    max_lost_leases: int = 50

    @classmethod
    def of(cls, section: BusSection) -> "Options":
        retry = Retry(
            section.event_max_attempts,
            section.event_backoff_base_ms,
            section.event_backoff_max_ms,
            section.event_jitter_ms,
        )
        return cls(
            lease_ms=section.event_lease_ms,
            retry=retry,
            heartbeat_ms=section.session_heartbeat_ms,
            session_ttl_ms=section.session_ttl_ms,
            retention_days=section.event_retention_days,
            max_chain_depth=section.event_max_chain_depth,
            poll_ms=section.event_poll_ms,
            claim_limit=section.event_claim_limit,
            max_lost_leases=section.event_max_lost_leases,
        )
