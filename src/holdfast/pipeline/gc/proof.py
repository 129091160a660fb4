"""The proof without which nothing is called an orphan: a completed audit of every manifest and every conflict.

An audit is believed through the moment at which it began to list, by the store's own clock. A blob is old enough if its
retry horizon had passed by then: whatever an agent still sent in time was accepted before the audit looked.
"""

from dataclasses import dataclass

from holdfast.base.codec import Document
from holdfast.objects.store import Store
from holdfast.pipeline.audited import Scope, latest_complete


@dataclass(frozen=True, slots=True)
class Proof:
    through_ns: int
    """By the store's clock."""
    key: str = ""

    def document(self) -> Document:
        return {"audit": self.key, "through_unix_ns": self.through_ns}


async def latest_proof(store: Store) -> Proof | None:
    """The latest audit that judged all of ingest; None if there is none."""
    audited = await latest_complete(store, Scope.INGEST)
    return None if audited is None else Proof(audited.through_unix_ns, audited.key)


def old_enough(modified_ns: int, horizon_ns: int, proof_ns: int | None) -> bool:
    return proof_ns is not None and modified_ns + horizon_ns <= proof_ns
