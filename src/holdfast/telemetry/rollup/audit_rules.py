"""What must hold of derived data: listings, generations, units and chunks. Names, meanings, remedies."""

from holdfast.base.audit import Severity, rules

_ANEW = "have the hour derived anew: docs/operate/pipeline.md says how"
_FULL = "holdfast pipeline run --full: it lists every batch again"
_SINCE = "holdfast pipeline run derive --since HOUR --until NEXT"
_AGAIN = "remove it, then holdfast pipeline run --full: it lists the batches again"

RULES = {
    **rules(
        Severity.ERROR,
        corrupt_listing=("a listing of batches cannot be read, or is not the one that its name says", _AGAIN),
        missing_listing=("a generation was made from a listing that is not there", _FULL),
        unlisted_batch=(
            "an accepted batch has records in an hour whose listings do not name it",
            "holdfast pipeline run --full",
        ),
        not_due=(
            "nothing derived covers a listing, and nothing says that it is due",
            "holdfast pipeline run --since HOUR",
        ),
        corrupt_generation=("a generation cannot be read, or is that of another hour", _ANEW),
        corrupt_unit=("the manifest of a unit cannot be read, or its inputs do not give its name", _ANEW),
        missing_unit=("the current generation names a unit whose manifest is not there", _ANEW),
        generation_differs=("the current generation says something else than the manifest of its unit", _ANEW),
        counted_twice=("a batch is counted in two units of one hour", _ANEW),
        left_out=("a unit leaves out a batch that its generation claims to cover", _ANEW),
        unlisted_input=("a unit counts a batch that no listing of its hour names", _ANEW),
        wrong_input=("a unit counts other bytes than those that were listed, or in another agent's bucket", _ANEW),
        wrong_count=("a unit has counted more or fewer records than its batches have", _ANEW),
        missing_chunk=("the current generation names a chunk that is not there", _ANEW),
        corrupt_chunk=("a chunk's bytes are not those that were written", _ANEW),
        dangling_index=("an index names batches that its unit was not made from", _ANEW),
        wrong_rows=("deriving a unit again from its batches gives other rows", _ANEW),
        corrupt_checkpoint=("the reconciler's checkpoint cannot be read", "remove it, then holdfast pipeline run"),
        checkpoint_ahead=(
            "the reconciler's checkpoint is ahead of what it can have seen: it passes batches over",
            "remove it, then holdfast pipeline run --full",
        ),
    ),
    **rules(
        Severity.WARNING,
        unreadable_input=(
            "a unit was made without batches that it could not read",
            "restore the batches, then have the hour derived anew",
        ),
        foreign_object=("an object in a prefix of ours whose name is none of ours", "find out who put it there"),
    ),
}
