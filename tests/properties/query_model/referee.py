"""Answers beside those of the model: where they differ is written down."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.properties.query_model.answers import same


class Objection(NamedTuple):
    answer: str
    """Which of the answers to a question was wrong."""
    about: str
    got: Any
    wanted: Any


@dataclass
class Referee:
    label: str
    objections: list[Objection] = field(default_factory=list)

    def agree(self, answer: str, about: Any, got: Any, wanted: Any) -> None:
        if not same(got, wanted):
            self.objections.append(Objection(answer, f"{self.label}: {about!r}", got, wanted))
