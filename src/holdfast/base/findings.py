"""What an audit has to say: rules with a severity and a remedy, findings about keys, and a tally of both. Pure.

A **rule** is declared once, in the room that checks it. A **finding** is a rule that does not hold for one key. A
**tally** counts everything that was looked at, and keeps what was found.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.base.codec import Document


class Severity(StrEnum):
    ERROR = "error"
    """Something is lost, wrong, or hidden from somebody."""
    WARNING = "warning"
    """Nothing is lost; somebody should look."""
    INFORMATION = "information"
    """As it may be; garbage, mostly."""


WEIGHT = {severity: number for number, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    severity: Severity
    meaning: str
    remedy: str


def rules(severity: Severity, **told: tuple[str, str]) -> dict[str, Rule]:
    """Rules of one severity, by name: what each means, and what to do."""
    return {name: Rule(name, severity, meaning, remedy) for name, (meaning, remedy) in told.items()}


@dataclass(frozen=True, slots=True)
class Finding:
    rule: Rule
    key: str
    message: str

    @property
    def severity(self) -> Severity:
        return self.rule.severity

    @property
    def wrong(self) -> bool:
        return self.rule.severity is not Severity.INFORMATION

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
    """What one look gave."""

    checked: Counter[str] = field(default_factory=Counter)
    """How many of what were looked at."""
    findings: list[Finding] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)
    """Counts that another look is compared with."""
    peaks: dict[str, int] = field(default_factory=dict)
    """The highest of some numbers."""

    def peak(self, name: str, value: int) -> None:
        self.peaks[name] = max(value, self.peaks.get(name, value))

    def find(self, rule: Rule, key: str, message: str) -> None:
        self.findings.append(Finding(rule, key, message))

    def take(self, other: "Tally") -> None:
        self.checked.update(other.checked)
        self.findings += other.findings
        self.sums.update(other.sums)
        for name, value in other.peaks.items():
            self.peak(name, value)

    def keep(self, seen: Iterable[Finding]) -> None:
        """Only findings that were there before, too: what a second look does not confirm was a race."""
        known = {(each.rule.name, each.key) for each in seen}
        self.findings = [each for each in self.findings if (each.rule.name, each.key) in known]

    @property
    def wrong(self) -> bool:
        return any(each.wrong for each in self.findings)


@dataclass(frozen=True, slots=True)
class Look:
    """How closely an audit looks, and at what."""

    through_ns: int
    """What was written before, by the store's own clock, is judged; the rest may be under way."""
    one_in: int = 1
    """Of so many objects the bytes of one are read; 1 reads all."""
    salt: str = ""
    """Another audit takes another sample."""

    @property
    def deep(self) -> bool:
        return self.one_in <= 1

    def judges(self, modified_ns: int) -> bool:
        return modified_ns < self.through_ns

    def closely(self, key: str) -> bool:
        """Whether the bytes of this object are read."""
        if self.deep:
            return True
        digest = hashlib.blake2b(f"{self.salt}\x00{key}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) % self.one_in == 0
