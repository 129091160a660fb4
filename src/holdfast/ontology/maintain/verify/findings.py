"""Findings: what a check of a store has to say. One table of kinds has all severities and remedies. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from holdfast.base.codec import Document


class Severity(Enum):
    ERROR = "error"
    """Rows are lost, wrong, or hidden from some reader."""
    WARNING = "warning"
    """Nothing is wrong with the rows; something else should be looked at."""
    INFORMATION = "information"
    """As it may be."""


class Kind(NamedTuple):
    name: str
    severity: Severity
    remedy: str


_BACKUP = "restore the object from a backup of the store"
_REPAIR = "holdfast onto index repair --apply"
_NOTHING = "nothing: it does no harm"


def _kinds(severity: Severity, **remedies: str) -> dict[str, Kind]:
    return {name: Kind(name, severity, remedy) for name, remedy in remedies.items()}


KINDS: dict[str, Kind] = {
    **_kinds(
        Severity.ERROR,
        head_unreadable=_BACKUP,
        head_missing=f"{_BACKUP}, before the next commit: the next commit would be the first of another chain",
        head_without_manifest=f"{_BACKUP}; nothing can be read until then",
        manifest_missing=f"{_BACKUP}; commits below it cannot be reached",
        manifest_unreadable=_BACKUP,
        chain_cycle="restore the manifest named here from a backup of the store: it leads back into the chain",
        chain_break="restore the manifest named here from a backup of the store: it does not fit the chain",
        summary_wrong="restore the manifest from a backup of the store: it contradicts the manifests before it",
        file_missing=_BACKUP,
        file_truncated=_BACKUP,
        file_unreadable=_BACKUP,
        hash_mismatch=f"{_BACKUP}: its bytes were changed",
        row_count_mismatch=_BACKUP,
        rows_wrong=f"{_BACKUP}: it holds rows of another commit or type",
        stats_wrong=f"{_BACKUP}, or of a snapshot remove it, then {_REPAIR}; queries may leave the file out until then",
        index_missing_rows=_REPAIR,
        index_missing_latest=_REPAIR,
        index_path_mismatch=_REPAIR,
        index_hole=_REPAIR,
        index_excess=_REPAIR,
        index_ahead=_REPAIR,
        index_unreadable=_REPAIR,
        index_overlap=_REPAIR,
        erased_payload="holdfast onto erase --resume: it removes what is left behind",
        redaction_unfinished="holdfast onto erase --resume: payload that should be gone may still be there",
        snapshot_missing=f"{_REPAIR}; the commits' own files are still there",
        snapshot_wrong=f"remove the snapshot, then {_REPAIR}; the commits' own files are still there",
    ),
    **_kinds(
        Severity.WARNING,
        snapshot_unproved=f"{_REPAIR}, then compact again: our readers do not use a snapshot that nothing proves",
        schema_objects_differ=f"{_REPAIR}: it writes them again from the chain",
        schema_version_ahead="holdfast onto migrate with the class of that version, or ask who has registered it",
        time_backwards="look at the clock of the writer named in the manifest",
        other_engine="open the store with the engine that it names",
    ),
    **_kinds(
        Severity.INFORMATION,
        index_absent=f"nothing: the next session writes it, or {_REPAIR}",
        index_lag=f"nothing: no row is missing; the next session brings it forward, or {_REPAIR}",
        index_of_no_type=_NOTHING,
        orphan_attempt=f"{_NOTHING}; it was never committed",
        staged_load="nothing: a load removes it when it ends; if it died, holdfast onto compact --apply, a day later",
        open_attempt="leave it alone: its writer may only be slow",
        orphan_snapshot="nothing: holdfast onto compact --apply removes it when it is old enough",
        foreign_object=f"{_NOTHING}; find out who put it there",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    key: str
    message: str

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind].severity

    @property
    def remedy(self) -> str:
        return KINDS[self.kind].remedy

    def document(self) -> Document:
        return {
            "kind": self.kind,
            "severity": self.severity.value,
            "key": self.key,
            "message": self.message,
            "remedy": self.remedy,
        }


_WEIGHT = {severity: number for number, severity in enumerate(Severity)}


def by_weight(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda found: (_WEIGHT[found.severity], found.kind, found.key))


@dataclass(frozen=True, slots=True)
class Report:
    commit_id: int
    findings: Sequence[Finding]
    checked: Counter[str]
    """How many of what were looked at."""

    @property
    def good(self) -> bool:
        return not any(found.severity is Severity.ERROR for found in self.findings)

    def document(self) -> Document:
        return {
            "good": self.good,
            "commit_id": self.commit_id,
            "checked": dict(self.checked),
            "findings": [found.document() for found in self.findings],
        }
