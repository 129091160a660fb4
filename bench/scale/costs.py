"""Dollars per month from what was counted: of a fleet, and of one that sends nothing, so that what a round costs
fixed costs are kept apart from what a batch costs.

Prices are those of S3 standard in the cheapest regions; they are estimates for planning. Traffic within a region is
free. A month has 730 hours.
"""

from dataclasses import dataclass
from typing import Any

PUT = 0.005 / 1000
"""A PUT or a LIST."""
GET = 0.0004 / 1000
"""A GET or a HEAD."""
GIB_MONTH = 0.023
HOURS = 730
_PRICES = {"put": PUT, "list": PUT, "get": GET, "head": GET, "range": GET, "delete": 0.0}


@dataclass(frozen=True)
class Rate:
    """Dollars: of one batch, and of a minute in which nothing is accepted."""

    accept_batch: float
    derive_batch: float
    idle_round: float
    stored_bytes_per_batch: float


def dollars(requests: dict[str, int]) -> float:
    return sum(_PRICES[verb] * count for verb, count in requests.items())


def rate(idle: dict[str, Any], busy: dict[str, Any]) -> Rate:
    """From a fleet without agents and one that sends, simulated for equally many rounds."""
    nothing, something = dollars(idle["pipeline"]["requests"]), dollars(busy["pipeline"]["requests"])
    accept = dollars(busy["collectors"]["requests"]) / busy["batches"]
    stored = sum(size for _, size in busy["stored"].values()) / busy["batches"]
    return Rate(accept, (something - nothing) / busy["batches"], nothing / idle["rounds"], stored)


@dataclass(frozen=True)
class Month:
    batches_per_second: float
    accepting: float
    deriving: float
    idle: float
    storing: float
    """Of one month's data, kept for a month."""

    @property
    def total(self) -> float:
        return self.accepting + self.deriving + self.idle + self.storing


def month(rate: Rate, agents: int, batch_s: float) -> Month:
    batches = agents * HOURS * 3600 / batch_s
    return Month(
        agents / batch_s,
        batches * rate.accept_batch,
        batches * rate.derive_batch,
        HOURS * 60 * rate.idle_round,
        batches * rate.stored_bytes_per_batch / 2**30 * GIB_MONTH,
    )
