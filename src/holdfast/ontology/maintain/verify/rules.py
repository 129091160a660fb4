"""The rules that ``verify`` checks, each with a severity, a meaning and a remedy; and the report of a check."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.base.audit import WEIGHT, Finding, Severity, rules
from holdfast.base.codec import Document

_BACKUP = "restore the object from a backup of the store"
_REPAIR = "holdfast onto index repair --apply"
_NOTHING = "nothing: it does no harm"

RULES = {
    **rules(
        Severity.ERROR,
        head_unreadable=("meta/head.json cannot be read, so nothing else can be", _BACKUP),
        head_missing=(
            "there are commits and no head",
            f"{_BACKUP}, before the next commit: the next commit would be the first of another chain",
        ),
        manifest_missing=("a manifest of the chain is missing", f"{_BACKUP}; commits below it cannot be reached"),
        manifest_unreadable=("a manifest of the chain cannot be read", _BACKUP),
        chain_break=(
            "a manifest names a parent that cannot be its parent",
            "restore the manifest named here from a backup of the store: it does not fit the chain",
        ),
        summary_wrong=(
            "a manifest contradicts the manifests before it",
            "restore the manifest from a backup of the store",
        ),
        file_missing=("a data file of a commit is missing", _BACKUP),
        file_unreadable=("a data file of a commit is truncated, or not a data file", _BACKUP),
        hash_mismatch=("the bytes of a data file changed after the commit", _BACKUP),
        rows_wrong=("a data file has other rows than its manifest says", _BACKUP),
        stats_wrong=(
            "wrong statistics of a file, by which queries may skip it",
            f"{_BACKUP}; if the file is a snapshot, remove it, then {_REPAIR}",
        ),
        index_missing_rows=("an index lags behind commits that have rows of its type", _REPAIR),
        index_wrong=("an index does not list the files that the chain has", _REPAIR),
        erased_payload=(
            "an unreferenced object holds rows that were erased",
            "holdfast onto erase --resume: it removes the object",
        ),
        redaction_unfinished=(
            "a purge or an erasure was committed and not completed",
            "holdfast onto erase --resume: payload that should be gone may still be there",
        ),
        snapshot_missing=(
            "an index names a snapshot that is missing",
            f"{_REPAIR}; the commits' own files are still there",
        ),
        snapshot_wrong=(
            "a snapshot has other rows than the commits that it replaces",
            f"remove the snapshot, then {_REPAIR}; the commits' own files are still there",
        ),
    ),
    **rules(
        Severity.WARNING,
        snapshot_unproved=(
            "a snapshot by another writer, or of a type that was dropped since: Holdfast does not use it",
            f"{_REPAIR}, then compact again",
        ),
        schema_objects_differ=(
            "a schema object contradicts the chain",
            f"{_REPAIR}: it writes schema objects again from the chain",
        ),
        schema_version_ahead=(
            "a schema version is listed that no commit has: another program stopped in the middle of a migration",
            "holdfast onto migrate with the class of that version, or ask who registered it",
        ),
        time_backwards=("a commit is dated before its parent", "look at the clock of the writer named in the manifest"),
        other_engine=("another engine has marked the store as its own", "open the store with the engine that it names"),
    ),
    **rules(
        Severity.INFORMATION,
        index_absent=("a type has no index", f"nothing: the next session writes it, or {_REPAIR}"),
        index_lag=(
            "an index lags behind commits without rows of its type",
            f"nothing: no row is missing; the next session updates it, or {_REPAIR}",
        ),
        index_of_no_type=("an index of a type that the chain does not have", _NOTHING),
        orphan_attempt=("objects of a commit attempt that lost", _NOTHING),
        open_attempt=("objects of a commit that may be in progress", "leave it alone: its writer may only be slow"),
        orphan_snapshot=(
            "a snapshot that no index names: superseded, or never published",
            "nothing: holdfast onto compact --apply removes it when it is old enough",
        ),
        staged_load=(
            "objects of a bulk load that is running or was killed",
            "nothing: a load removes them when it ends; if it was killed, holdfast onto compact --apply, a day later",
        ),
        foreign_object=("a key that no object of an ontology has", f"{_NOTHING}; find out who put it there"),
    ),
}


def finding(rule: str, key: str, message: str) -> Finding:
    return Finding(RULES[rule], key, message)


@dataclass(frozen=True, slots=True)
class Report:
    commit_id: int
    findings: Sequence[Finding]
    """The most severe first."""
    checked: Counter[str]
    """How many objects of each kind were checked."""

    @property
    def errors(self) -> Iterator[Finding]:
        return (each for each in self.findings if each.severity is Severity.ERROR)

    @property
    def good(self) -> bool:
        """Whether there are no errors. Warnings do not count."""
        return not any(self.errors)

    def document(self) -> Document:
        return {
            "good": self.good,
            "commit_id": self.commit_id,
            "checked": dict(self.checked),
            "findings": [each.document() for each in self.findings],
        }


def by_severity(found: Finding) -> tuple[int, str, str]:
    return WEIGHT[found.severity], found.rule.name, found.key
