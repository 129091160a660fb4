"""Plans: what migrate, drop, revert and erase have in common. A preview first, then one commit on the previewed head.

``plan_at_head`` reads the head and makes a plan from it without writing anything. A plan has a token, a digest of all
that the plan was made from. ``apply_plan`` requires that token and commits on the previewed head (``if_head``), or not
at all: what is done is what was shown. Who and why are recorded in the commit's metadata under the operation's name.

Errors of ``apply_plan``: ``Refused`` for another token, ``Conflict`` if there are commits after the preview, and those
of ``Committer.commit``. After the commit, objects that are derived from it are written; if that fails, the next session
writes them. A redaction that fails is raised: the commit stands, and ``erase.resume`` continues it.
"""

import hashlib
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
from holdfast.ontology.commit.lock import Turn
from holdfast.ontology.commit.view import View
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.batch import Batch, Intent
from holdfast.ontology.format.head import Head, read_head
from holdfast.ontology.maintain.redact import Watch, perform
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.types.refs import Place, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The base of all previews."""

    head: int
    """The commit that the plan was made on."""
    token: str


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


@dataclass(frozen=True, slots=True)
class Work:
    """The contents of the commit that applies a plan."""

    metadata: Document
    """One entry, named after the operation; ``by`` and ``why`` are added to it."""
    order: Order = PLAIN
    types: Mapping[TypeId, TypeInfo] = field(default_factory=dict)
    """The types of the rows that are written."""
    queue: Sequence[Intent | Batch] = ()


async def plan_at_head(store: Store, make: Callable[[Pinned], Awaitable[T]]) -> T:
    """The plan that ``make`` returns for the current head; again if payload was destroyed while it read."""

    async def once() -> T:
        chain = Chain(store)
        head = await read_head(store)
        return await make(Pinned(store, chain, head, await chain.ledger(head.place)))

    return await retry_overtaken(once)


def check_token(plan: Plan, token: str) -> None:
    """``Refused`` if the token is of another preview."""
    if token != plan.token:
        raise Refused(
            "the token does not fit: the store, or what is to be done, has changed since the preview",
            remedy="look at the preview again, and use the token that it gives",
        )


async def apply_plan(
    store: Store,
    ambient: Ambient,
    plan: Plan,
    work: Work,
    *,
    turn: Turn | None,
    by: str,
    why: str,
    watch: Watch | None = None,
) -> Commit | None:
    """Make the commit; None if it would change nothing. The caller has checked the token."""
    view = View(store)
    committer = Committer(store, ambient, view, work.types, runtime_id=by, turn=turn)
    committer.queue += work.queue
    ((operation, record),) = work.metadata.items()
    metadata = {operation: {**record, "by": by, "why": why}}
    commit = await committer.commit(metadata, if_head=plan.head, order=work.order)
    if commit is None:
        return None
    with suppress(HoldfastError):  # derived objects: the next session writes what is missing, and verify names it
        await Catalog(store, ambient, by).sync(view.chain, view.ledger)
        if work.order.redact is None:
            await repair_indexes(store, ambient, apply=True, types=sorted(work.types))
    if work.order.redact is not None:
        await perform(store, ambient, Place(commit.commit_id, commit.manifest_path), watch=watch)
    return commit
