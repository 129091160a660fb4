"""What must hold of accepted batches, conflicts, blobs and the references between them. Names, meanings, remedies."""

from holdfast.base.audit import Severity, rules

_RESTORE = "restore the object from a backup, a version or a replica of the store"
_REFER = "holdfast pipeline run reconcile --full: it writes what is missing"
_STRAY = "find out who wrote it, then remove it: it leads nowhere, and nothing depends on it"

RULES = {
    **rules(
        Severity.ERROR,
        corrupt_manifest=("an accepted manifest cannot be read, or is that of another batch", _RESTORE),
        unknown_schema=("a record of a schema that is not known here", "upgrade holdfast, or find out who wrote it"),
        wrong_blob_key=("a manifest names bytes under a key that is not theirs", _RESTORE),
        missing_blob=("an accepted manifest names bytes that are not there", _RESTORE),
        wrong_length=("the bytes of a batch are not as many as were accepted", _RESTORE),
        corrupt_blob=("bytes are not those of their hash", _RESTORE),
        unreadable_frame=(
            "the bytes are those that were accepted, and no frame that can be read here",
            "upgrade holdfast",
        ),
        other_identity=("the bytes of a batch are those of another batch", "find out who wrote the manifest"),
        wrong_records=("a manifest counts other records than its bytes have", "find out who wrote the manifest"),
        missing_by_time=("no reference by time names an accepted batch: nothing will be derived from it", _REFER),
        missing_by_blob=("no reference says that an accepted batch needs its bytes", _REFER),
        missing_blob_by_time=("no reference by time leads to the bytes of an accepted batch", _REFER),
        wrong_reference=("a reference says something else than its manifest", f"remove it, then {_REFER}"),
        corrupt_by_time=("a reference by time names no manifest", _STRAY),
        dangling_by_blob=("a reference says that a batch needs these bytes, and it does not", _STRAY),
        dangling_blob_by_time=("a reference by time leads to no bytes", _STRAY),
        dangling_conflict_by_blob=("a reference says that a conflict needs these bytes, and there is none", _STRAY),
        corrupt_conflict=("the record of a conflict cannot be read, or is that of another", _RESTORE),
        conflict_without_accepted=("a conflict with a batch that was not accepted as it says", _RESTORE),
        missing_evidence=("the bytes of an unresolved conflict are missing", _RESTORE),
    ),
    **rules(
        Severity.WARNING,
        missing_conflict_by_blob=("no reference says that a conflict needs its bytes", _REFER),
        resolution_of_nothing=(
            "a decision about a conflict that is not on record",
            "find out who removed the conflict",
        ),
        foreign_object=("an object in a prefix of ours whose name is none of ours", "find out who put it there"),
        foreign_blob=("bytes under their own hash that are no frame", "upgrade holdfast, or find out who put it there"),
    ),
    **rules(
        Severity.INFORMATION,
        orphan_blob=("bytes that no manifest names: left behind, or still on their way", "holdfast gc looks into it"),
    ),
}
