"""One owner per epoch, and no effect of an owner that has been replaced."""

from collections.abc import Iterable, Iterator, Sequence

from holdfast.sim.checkers.order import monotone
from holdfast.sim.checkers.violation import Violation

ONE_OWNER = "one owner"
FENCED_OFF = "stale owners are fenced off"

Tenure = tuple[str, int]
"""An owner and an epoch."""


def one_owner(tenures: Sequence[Tenure], grants: Iterable[Tenure]) -> Iterator[Violation]:
    """``tenures`` is what stood on the lease, in order; ``grants`` is what owners were told."""
    yield from monotone("the epoch on the lease", (epoch for _, epoch in tenures))
    owners: dict[int, str] = {}
    for owner, epoch in tenures:
        if owners.setdefault(epoch, owner) != owner:
            yield Violation(ONE_OWNER, f"epoch {epoch} belonged to {owners[epoch]} and to {owner}")
    told: set[Tenure] = set()
    for owner, epoch in grants:
        if owners.get(epoch) != owner:
            yield Violation(ONE_OWNER, f"{owner} was granted epoch {epoch}, which belonged to {owners.get(epoch)}")
        if (owner, epoch) in told:
            yield Violation(ONE_OWNER, f"epoch {epoch} was granted to {owner} twice")
        told.add((owner, epoch))


def fenced_off(effects: Iterable[Tenure]) -> Iterator[Violation]:
    """``effects`` in the order in which they took place, each with the owner and the epoch that it carried."""
    newest, holder = 0, ""
    for owner, epoch in effects:
        if epoch < newest:
            yield Violation(FENCED_OFF, f"{owner} had an effect in epoch {epoch}, after {holder} had one in {newest}")
        elif epoch > newest:
            newest, holder = epoch, owner
        elif owner != holder:
            yield Violation(FENCED_OFF, f"{owner} and {holder} both had effects in epoch {epoch}")
