"""What a commit tells its caller: that it is made, and, while it is not, how far it has come."""

from dataclasses import dataclass

from holdfast.ontology.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that is on the chain."""

    commit_id: int
    manifest_path: str
    rows: int
    created_at: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a commit has come: which of ``STAGES``, and how much of what is done."""

    stage: str
    done: int
    total: int


STAGES = ("state", "delta", "files", "head")


def told(manifest: Manifest) -> Commit:
    rows = sum(entry.row_count for entry in manifest.files)
    return Commit(manifest.commit_id, manifest.path, rows, manifest.created_at)
