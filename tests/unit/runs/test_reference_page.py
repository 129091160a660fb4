"""The pages on runs say what the code does: names, errors to acknowledge, key layout, and what things cost."""

import inspect
import re
from dataclasses import fields

import pytest

from holdfast import runs
from holdfast.base import errors
from holdfast.base.errors import HoldfastError
from holdfast.runs import errors as run_errors
from holdfast.runs import layout
from holdfast.runs.journal.entry import TYPES
from tests.tidy.tree import ROOT
from tests.unit.runs.desk import Desk

REFERENCE = (ROOT / "docs/reference/runs.md").read_text(encoding="utf-8")
DISPATCH = (ROOT / "docs/how-to/dispatch.md").read_text(encoding="utf-8")


def table(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose first heading is ``first``."""
    _, _, rest = text.partition(f"\n| {first} |")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


class TestNames:
    def test_every_public_name(self) -> None:
        assert [name for name in runs.__all__ if not re.search(rf"`[^`]*\b{name}\b", REFERENCE + DISPATCH)] == []

    @pytest.mark.parametrize("kind", [runs.Workflow, runs.Context, runs.Outcome])
    def test_every_method_and_field_a_user_has(self, kind: type) -> None:
        # What the machinery around a context uses, and what a workflow was made of.
        inner = {"enter", "finish", "broken", "function", "name", "version", "retry"}
        names = {name for name in [*vars(kind), *getattr(kind, "__annotations__", {})] if not name.startswith("_")}
        assert [name for name in sorted(names - inner) if not re.search(rf"`[^`]*\b{name}\b", REFERENCE)] == []

    def test_signatures(self) -> None:
        """What a table gives as a call is the call."""
        shown = dict(re.findall(r"^\| `(\w+)\(([^`]*)\)`", REFERENCE, re.MULTILINE))
        checked = set()
        for owner in (runs.Workflow, runs.Context, runs.Outcome, runs):
            for name, arguments in shown.items():
                function = getattr(owner, name, None)
                if inspect.isfunction(function):
                    taken = [each.lstrip("*") for each in inspect.signature(function).parameters if each != "self"]
                    named = [
                        each.partition("=")[0].strip().lstrip("*") for each in re.split(r",\s*", arguments) if each
                    ]
                    assert [each for each in named if "(" not in each and ")" not in each] == taken, name
                    checked.add(name)
        assert checked == set(shown), "every call in a table is one of ours"

    def test_defaults_of_a_retry(self) -> None:
        shown = re.search(r"`Retry\(([^`]*)\)`: delays", REFERENCE)
        assert shown is not None
        text = shown[1]
        for each in fields(runs.Retry):
            value = "(Exception,)" if each.name == "on" else f"{each.default:_}"
            assert f"{each.name}={value}" in text


class TestErrors:
    def classes(self) -> dict[str, type[BaseException]]:
        found: dict[str, type[BaseException]] = {"Exception": Exception}
        for prefix, module in (("", errors), ("runs.", run_errors)):
            for name, kind in vars(module).items():
                if inspect.isclass(kind) and issubclass(kind, HoldfastError) and kind.__module__ == module.__name__:
                    found[prefix + name] = kind
        del found["runs.StepFailed"]  # never leaves a call: the outcome is failed
        return found

    def test_the_table_says_what_acknowledge_says(self) -> None:
        documented = {name.strip("`"): verdict == "yes" for name, verdict, _ in table(DISPATCH, "error")}
        assert documented == {name: runs.acknowledge(kind.__new__(kind)) for name, kind in self.classes().items()}

    def test_the_table_of_outcomes_names_every_status(self) -> None:
        text = " ".join(row[0] for row in table(DISPATCH, "outcome"))
        assert all(f"`{status}`" in text for status in run_statuses())


def run_statuses() -> list[str]:
    return list(inspect.get_annotations(runs.Outcome)["status"].__args__)


class TestFormat:
    def test_every_type_of_entry(self) -> None:
        assert {row[0].strip("`") for row in table(REFERENCE, "type")} == TYPES

    def test_keys(self) -> None:
        documented = [row[0].strip("`") for row in table(REFERENCE, "key")]
        built = [
            layout.journal_key("{run_id}"),
            layout.payload_key("{run_id}", "{attempt}"),
            layout.mail_key("{run_id}", "{event}", "{mail_id}"),
            layout.fork_folder("{run_id}") + "{fork_id}.json",
        ]
        assert set(built) <= set(documented)
        assert f"{layout.INDEX_OPEN}{{run_id}}/{{summary}}" in documented
        assert f"{layout.INDEX_DONE}{{day}}/{{run_id}}/{{summary}}" in documented
        folders = {layout.segment_folder("{run_id}"), layout.generation_folder("{run_id}")}
        assert folders <= {key.rpartition("/")[0] + "/" for key in documented}


class TestCosts:
    """The table of costs, row by row."""

    async def test_each_row(self) -> None:
        desk = Desk()

        @runs.workflow()
        async def work(ctx: runs.Context, steps: int, *, wait: bool = False) -> object:
            for _ in range(steps):
                await ctx.step("s", lambda: "x" * 1_000)
            return await ctx.suspend("go") if wait else steps

        async def costs(call: object) -> tuple[dict[str, int], dict[str, int]]:
            store = desk.store()
            await call(store)  # type: ignore[operator]
            return tuple(  # type: ignore[return-value]
                {verb: tally.requests for (verb, its), tally in store.usage.tallies.items() if its == family}
                for family in ("runs", "runs-index")
            )

        rows = {row[0]: tuple(row[1:]) for row in table(REFERENCE, "what")}
        assert await costs(lambda store: work.start(store, 5, run_id="r")) == (
            {"get": 1, "put": 7},
            {"put": 2, "delete": 1},
        )
        assert rows["start of a new run, n steps, to its end"] == ("1 GET, n + 2 PUT", "2 PUT, 1 DELETE")
        assert await costs(lambda store: work.start(store, 5, run_id="r")) == ({"get": 1}, {})
        assert rows["call of a run that is over, or whose timer has not come"] == ("1 GET", "")
        journal, index = await costs(lambda store: work.start(store, 5, wait=True, run_id="w"))
        assert journal == {"get": 1, "put": 1 + 5 + 1, "list": 1}
        assert index == {"put": 2, "delete": 1, "list": 1}
        assert await costs(lambda store: work.start(store, 5, wait=True, run_id="w")) == ({"get": 1, "list": 1}, {})
        assert rows["call of a run whose event has not come"] == ("1 GET, 1 LIST", "")
        assert await costs(lambda store: work.resume(store, "w", "go", 1)) == (
            {"get": 1, "put": 2},
            {"put": 2, "delete": 2, "list": 2},
        )
        assert rows["resume of a small run that then ends"] == ("1 GET, 2 PUT", "2 PUT, 2 DELETE, 2 LIST")
        assert await costs(lambda store: runs.deliver(store, "later", "go")) == ({"get": 1, "put": 1}, {"put": 1})
        assert rows["deliver an event"] == ("1 GET, 1 PUT", "1 PUT")
        assert await costs(lambda store: runs.describe(store, "r")) == ({"get": 1}, {})
        assert await costs(lambda store: runs.worker(store, [work], until_idle=True)) == ({}, {"list": 1})
        journal, _ = await costs(lambda store: work.start(store, 320, run_id="long"))
        assert journal["put"] <= 322 + 322 // 32, "sealing is one PUT in 32 more"
