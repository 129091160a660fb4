"""The page on audits says what the rules say, and every rule has a fault that breaks it."""

import re

from holdfast.bus.audit import RULES as BUS
from holdfast.pipeline.jobs.audit import RULES as STORE
from holdfast.runs.admin.audit import RULES as RUNS
from holdfast.telemetry.accept.audit import RULES as INGEST
from holdfast.telemetry.rollup.audit import RULES as METRICS
from tests.tidy.tree import ROOT

EVERY = [*INGEST.values(), *METRICS.values(), *RUNS.values(), *BUS.values(), *STORE.values()]


def test_the_page_has_every_rule_word_for_word() -> None:
    page = (ROOT / "docs/operate/audit.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(rule.name, str(rule.severity), rule.meaning) for rule in EVERY]


def test_one_name_has_one_severity() -> None:
    names = {rule.name for rule in EVERY}
    assert len({(rule.name, rule.severity) for rule in EVERY}) == len(names)


def test_every_rule_is_broken_by_a_planted_fault() -> None:
    planted = "".join(
        (ROOT / f"tests/unit/pipeline/{name}.py").read_text(encoding="utf-8")
        for name in ("planted", "planted_hours", "planted_others")
    )
    assert [rule.name for rule in EVERY if f'"{rule.name}"' not in planted] == []
