"""Explains which files a query reads, and what that costs.

Explaining fetches the files that the query needs, and they stay in the session. With a profile the query runs, too.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.ontology.chain.history import Window
from holdfast.ontology.filters.operand import Sql
from holdfast.ontology.query.cache.prune import Choice
from holdfast.ontology.query.engine import Engine, Snapshot
from holdfast.ontology.query.statement import Ask

FILES_SHOWN = 8
"""Files of a table that the text of an explanation lists."""


@dataclass(frozen=True)
class TableUse:
    """How one type is read."""

    type_name: str
    files: tuple[Choice, ...]
    """All files of the type, and whether each is read."""
    from_json: tuple[str, ...]
    """Fields that are read from ``fields_json``, because a file has no complete typed column of them."""

    def lines(self) -> Iterator[str]:
        used = [each for each in self.files if each.use != "pruned"]
        yield f"{self.type_name}: {len(used)} of {len(self.files)} files"
        reasons = Counter(f"{each.use} by {each.reason}" for each in self.files if each.reason)
        yield from (f"  {count} {reason}" for reason, count in sorted(reasons.items()))
        yield from (f"  {each.use}: {each.entry.path}" for each in used[:FILES_SHOWN])
        if self.from_json:
            yield f"  read from fields_json: {', '.join(self.from_json)}"


@dataclass(frozen=True)
class Explanation:
    head: int
    window: Window
    tables: tuple[TableUse, ...]
    requests: int | None
    """Requests that the explanation took, as the query would have; None if the store does not count them."""
    received_bytes: int | None
    sql: str
    plan: str
    """DuckDB's plan; with a profile it has the time that each part took."""
    profiled: bool

    def __str__(self) -> str:
        window = self.window
        mode = "history" if window.history else "state"
        lines = [f"{mode}, commits {window.lower + 1} to {window.upper} of {self.head}"]
        if self.requests is not None:
            lines.append(f"{self.requests} requests, {self.received_bytes} bytes received")
        lines += [line for table in self.tables for line in table.lines()]
        return "\n".join([*lines, "", self.plan] if self.profiled else lines)


async def explain(engine: Engine, ask: Ask, *, profile: bool) -> Explanation:
    before = _usage(engine)

    async def question(snapshot: Snapshot) -> tuple[Snapshot, Sql, Window]:
        rows = await snapshot.rows(ask)
        return snapshot, await engine.filled(rows.select(rows.stored)), rows.window

    snapshot, sql, window = await engine.ask(question)
    after = _usage(engine)
    verb = "EXPLAIN ANALYZE" if profile else "EXPLAIN"
    plan = await engine.table(Sql(f"{verb} {sql.text}", sql.params))
    return Explanation(
        snapshot.ledger.commit_id,
        window,
        tuple(
            TableUse(each.table.shape.name, tuple(each.choices), tuple(sorted(each.table.lacking)))
            for each in snapshot.planned
        ),
        None if before is None or after is None else after[0] - before[0],
        None if before is None or after is None else after[1] - before[1],
        sql.text,
        "\n".join(str(text).rstrip() for text in plan.column("explain_value").to_pylist()),
        profile,
    )


def _usage(engine: Engine) -> tuple[int, int] | None:
    """The requests and received bytes so far."""
    usage = getattr(engine.store, "usage", None)
    if usage is None:
        return None
    return usage.requests(), sum(tally.received_bytes for tally in usage.tallies.values())
