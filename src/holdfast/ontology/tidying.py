"""Automatic compaction: when a session does it, by policy. Never on the path of a commit, and one at a time.

Whether there is enough to do is seen from the index that upkeep has just written, without a request. A failure is
logged and forgotten: nothing depends on it, and the next time, or somebody else's session, does it.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

from holdfast.base import telemetry
from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain import Chain
from holdfast.ontology.compact import Compactor
from holdfast.ontology.index import Index
from holdfast.ontology.ledger import Ledger
from holdfast.ontology.refs import TypeId
from holdfast.ontology.tiers import pieces_of, plan

log = telemetry.logger("ontology")


@dataclass(frozen=True, slots=True)
class Policy:
    when: Literal["off", "threshold", "scheduled"] = "threshold"
    threshold: int = 64
    """So many files must be merged to be worth it."""
    every_s: float = 300.0
    """The interval of ``scheduled``; then two files are enough."""


NEVER = Policy("off")
THRESHOLD = Policy()


class Tidying:
    def __init__(self, store: Store, ambient: Ambient, policy: Policy, chain: Chain) -> None:
        self._ambient = ambient
        self._policy = policy
        self._compactor = Compactor(store, ambient, chain=chain)
        self._due: dict[TypeId, None] = {}
        self._work: asyncio.Task[None] | None = None
        self._last_ns = ambient.clock.monotonic_ns()

    def note(self, index: Index, ledger: Ledger) -> None:
        """An index was written. Costs nothing now."""
        if self._policy.when == "off":
            return
        wanted = plan(pieces_of(index.entries, index.type_id), below=ledger.commit_id)
        enough = 2 if self._policy.when == "scheduled" else self._policy.threshold
        if sum(map(len, wanted)) < enough:
            return
        self._due[index.type_id] = None
        if self._work is None and self._is_time():
            self._work = asyncio.ensure_future(self._compact())

    async def close(self) -> None:
        """Finish what has begun; of a threshold that was reached meanwhile, too."""
        if self._work is not None:
            await self._work
        if self._due and self._policy.when == "threshold":
            await self._compact()

    def _is_time(self) -> bool:
        if self._policy.when == "threshold":
            return True
        now_ns = self._ambient.clock.monotonic_ns()
        if now_ns - self._last_ns < self._policy.every_s * 1e9:
            return False
        self._last_ns = now_ns
        return True

    async def _compact(self) -> None:
        types: list[TypeId] = []
        while self._due:
            type_id, _ = self._due.popitem()
            types.append(type_id)
            try:
                await self._compactor.compact(type_id)
            except HoldfastError as error:
                log.warning("%s was not compacted (%s); readers do not need it", type_id.label, error)
        try:
            await self._compactor.sweep(types)
        except HoldfastError as error:
            log.warning("superseded snapshots stay (%s)", error)
        self._work = None
