"""Results of audits: rules with a severity and a remedy, findings about keys, and a tally of both. Pure.

A **rule** is declared once, in the package that checks it. A **finding** is a rule that does not hold for one key. A
**tally** counts what was checked and collects the findings.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.base.codec import Document


class Severity(StrEnum):
    ERROR = "error"
    """Data is lost, wrong, or not visible to a reader."""
    WARNING = "warning"
    """Nothing is lost, but an operator should look."""
    INFORMATION = "information"
    """Allowed; usually garbage."""


WEIGHT = {severity: number for number, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    severity: Severity
    meaning: str
    remedy: str


def rules(severity: Severity, **texts: tuple[str, str]) -> dict[str, Rule]:
    """Rules of one severity, by name; each text is its meaning and its remedy."""
    return {name: Rule(name, severity, meaning, remedy) for name, (meaning, remedy) in texts.items()}


@dataclass(frozen=True, slots=True)
class Finding:
    rule: Rule
    key: str
    message: str

    @property
    def severity(self) -> Severity:
        return self.rule.severity

    def document(self) -> Document:
        return {
            "rule": self.rule.name,
            "severity": str(self.rule.severity),
            "key": self.key,
            "message": self.message,
            "remedy": self.rule.remedy,
        }


@dataclass(slots=True)
class Tally:
    """The result of one pass over the store."""

    checked: Counter[str] = field(default_factory=Counter)
    """By kind, how many were checked."""
    findings: list[Finding] = field(default_factory=list)

    def find(self, rule: Rule, key: str, message: str) -> None:
        self.findings.append(Finding(rule, key, message))

    def take(self, other: "Tally") -> None:
        self.checked.update(other.checked)
        self.findings += other.findings

    def keep(self, seen: Iterable[Finding]) -> None:
        """Keep only findings that ``seen`` contains too: a finding that a second pass does not confirm was a race."""
        confirmed = {(each.rule.name, each.key) for each in seen}
        self.findings = [each for each in self.findings if (each.rule.name, each.key) in confirmed]


@dataclass(frozen=True, slots=True)
class Look:
    """The objects that an audit checks, and how thoroughly."""

    through_ns: int
    """Only objects modified before this, by the store's clock, are checked: others may belong to a running write."""
    one_in: int = 1
    """The bytes of one object in this many are read; 1 reads all."""
    salt: str = ""
    """Varies the sample between audits."""

    @property
    def deep(self) -> bool:
        return self.one_in <= 1

    def judges(self, modified_ns: int) -> bool:
        return modified_ns < self.through_ns

    def closely(self, key: str) -> bool:
        """Whether the bytes of this object are read, that is, whether it is in the sample."""
        if self.deep:
            return True
        digest = hashlib.blake2b(f"{self.salt}\x00{key}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) % self.one_in == 0
