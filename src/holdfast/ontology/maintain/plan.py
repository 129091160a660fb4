"""Plans: migrate, drop, revert and erase work alike. First a preview, then one commit on the head of the preview.

``plan_at_head`` reads the head and makes a plan for it. Nothing is written. The plan has a token, a digest of all that
it was made from. ``apply`` requires that token and commits on the head of the plan, or not at all, so that what is done
is what was shown. Who and why are recorded in the metadata of the commit, under the name of the operation.

Errors of ``apply``: ``Refused`` for another token, ``Conflict`` if there are commits after the preview, and those of
``Committer.commit``. After the commit, objects that are derived from it are written; if that fails, the next session
writes them. A redaction that fails raises: the commit is valid, and ``erase.resume`` continues it.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.base.codec import Document
from holdfast.base.errors import HoldfastError, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.catalog import Catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import retry_overtaken
from holdfast.ontology.commit.attempt import PLAIN, Order
from holdfast.ontology.commit.commit import Commit, Committer
from holdfast.ontology.commit.lock import CommitLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.batch import Batch, Intent
from holdfast.ontology.format.head import Head, read_head
from holdfast.ontology.maintain.redact import finish_redactions
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """The contents of the commit that applies a plan."""

    operation: str
    record: Document
    """What was done, for the metadata of the commit."""
    order: Order = PLAIN
    types: Mapping[TypeId, TypeInfo] = field(default_factory=dict)
    """The types of the rows that are written."""
    queue: Sequence[Intent | Batch] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """The base of all previews."""

    head: int
    """The commit that the plan was made on."""
    token: str

    @abstractmethod
    async def work(self, store: Store) -> Work | None:
        """The commit that applies the plan; None if there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The store at the head that a plan is made on."""

    store: Store
    chain: Chain
    head: Head
    ledger: Ledger

    def token(self, *parts: object) -> str:
        """A digest of the head and of ``parts``, which must have a stable ``repr``."""
        found = hashlib.blake2b(digest_size=6)
        for part in (self.head.manifest_path, *parts):
            found.update(repr(part).encode() + b"\0")
        return found.hexdigest()


async def plan_at_head(store: Store, make: Callable[[Pinned], Awaitable[T]]) -> T:
    """The plan that ``make`` returns for the current head; repeated if a redaction overtakes it."""

    async def once() -> T:
        chain = Chain(store)
        head = await read_head(store)
        return await make(Pinned(store, chain, head, await chain.ledger(head.place)))

    return await retry_overtaken(once)


async def apply(
    store: Store,
    ambient: Ambient,
    plan: Plan,
    token: str,
    *,
    lock: CommitLock | None = None,
    by: str,
    why: str,
) -> Commit | None:
    """Make the commit; None if it would change nothing."""
    if token != plan.token:
        raise Refused(
            "the token does not fit: the store, or what is to be done, has changed since the preview",
            remedy="look at the preview again, and use the token that it gives",
        )
    work = await plan.work(store)
    if work is None:
        return None
    view = View(store)
    committer = Committer(store, ambient, view, work.types, runtime_id=by, lock=lock)
    committer.queue += work.queue
    metadata = {work.operation: {**work.record, "by": by, "why": why}}
    commit = await committer.commit(metadata, if_head=plan.head, order=work.order)
    if commit is None:
        return None
    with suppress(HoldfastError):  # derived objects: the next session writes what is missing, and verify reports it
        await Catalog(store, ambient, by).sync(view.chain, view.ledger)
        if work.order.redact is None:
            await repair_indexes(store, ambient, apply=True, types=sorted(work.types))
    if work.order.redact is not None:
        await finish_redactions(store, ambient)
    return commit
