"""Figures of a collector that are asked for when somebody looks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.server.service import Service


def add_gauges(service: "Service") -> None:
    gauge = service.meters.gauge
    gauge("holdfast_ingest_under_way", "Requests under way.", lambda: service.limits.under_way)
    gauge("holdfast_ingest_in_flight_bytes", "Memory that requests hold.", lambda: service.limits.in_flight_bytes)
    gauge("holdfast_ingest_references_owed", "Derived references to be written.", lambda: service.references()[0])
    gauge("holdfast_ingest_references_dropped", "Left to the reconciler.", lambda: service.references()[1])
    gauge("holdfast_spool_batches", "Accepted here, and not in the store yet.", lambda: _waiting(service))
    gauge(
        "holdfast_spool_landing_lag_seconds",
        "Since all that waited had landed; NaN without a spool.",
        lambda: _or_nan(service.landing_lag_s()),
    )
    gauge("holdfast_ingest_tokens", "Tokens that are known.", lambda: len(service.tokens.table.tokens))
    gauge("holdfast_live_batches", "Batches in live state.", lambda: len(service.live))
    gauge("holdfast_live_bytes", "Memory of live state, about.", lambda: service.live.size)
    gauge("holdfast_live_evicted", "Batches that did not fit into live state.", lambda: service.live.evicted)
    gauge("holdfast_live_problems", "Accepted batches that could not be read.", lambda: service.follower.problems)
    gauge(
        "holdfast_live_follow_lag_seconds", "Since all was seen; NaN if never.", lambda: _or_nan(service.follow_lag_s())
    )
    gauge(
        "holdfast_reconcile_lag_seconds",
        "Age of what is reconciled; NaN if no reconciler has said.",
        lambda: _or_nan(service.reconciled.lag_s()),
    )


def _waiting(service: "Service") -> int:
    return 0 if service.spooling is None else len(service.spooling.spool)


def _or_nan(lag: float | None) -> float:
    return float("nan") if lag is None else lag
