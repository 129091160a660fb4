"""What a checker reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    """What must hold, in a few words."""
    evidence: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.evidence}"
