"""The reference says what the code does: laws, errors, options of stores, and what operations cost."""

import inspect
import random
import re
from collections.abc import Iterator
from typing import Any

from holdfast.base import errors
from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.cli.main import FLAGS, TAKES_VALUE
from holdfast.cli.nouns import NOUNS, load
from holdfast.objects import CREATE, IfMatch, Lease, Plain, Register, Written
from holdfast.objects.client import Client, Usage
from holdfast.objects.conformance.laws import BROKEN, KEPT, LAWS, UNJUDGED
from holdfast.objects.memory import MemoryStore
from holdfast.objects.open import open_store
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import MAX_KEY_BYTES
from holdfast.objects.uri import OPTIONS, SCHEMES
from tests.tidy.tree import ROOT

REFERENCE = ROOT / "docs" / "reference"


def rows(page: str, columns: int) -> list[tuple[str, ...]]:
    """The rows of the page's tables with this many columns, each cell without the ticks of code."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    lines = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    cells = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return [row for row in cells if len(row) == columns and not set(row[0]) <= set("-| ")]


def test_laws_are_listed_word_for_word_in_their_order() -> None:
    documented = [(name.strip("`"), promise, breach) for name, promise, breach in rows("laws.md", 3)[1:]]
    assert documented == [(law.name, law.promise, law.breach) for law in LAWS]


def test_every_error_class_is_listed_with_its_kind() -> None:
    documented = {(name.strip("`"), kind.strip("`")) for name, kind, _, _ in rows("errors.md", 4) if name[1].isupper()}
    classes = {
        (name, kind.kind)
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, HoldfastError)
    }
    assert documented == classes


def test_the_table_of_errors_gives_each_meaning() -> None:
    meanings = {kind.strip("`"): meaning for kind, _, _, meaning in rows("errors.md", 4)}
    for kind, row in errors.TABLE.items():
        assert meanings[kind] == row.meaning


def test_every_option_of_every_store_is_listed() -> None:
    documented = {(scheme.strip("`"), option.strip("`")) for scheme, option, _ in rows("stores.md", 3)[1:]}
    assert documented == {(scheme, option) for scheme, options in OPTIONS.items() for option in options.model_fields}


def test_every_scheme_and_the_limit_of_keys_are_named() -> None:
    page = (REFERENCE / "stores.md").read_text(encoding="utf-8")
    assert all(f"`{scheme}:" in page for scheme in SCHEMES)
    assert f"1 to {MAX_KEY_BYTES:,} bytes" in page


def test_every_option_that_the_page_on_commands_names_exists() -> None:
    """The page leaves options to `--help`, and names them in examples and explanations."""

    def options(command: Any) -> Iterator[str]:
        for parameter in command.params:
            yield from parameter.opts
        for child in getattr(command, "commands", {}).values():
            yield from options(child)

    known = {
        "--help",
        "--install-completion",
        *FLAGS,
        *TAKES_VALUE,
        *(each for noun in NOUNS for each in options(load(noun))),
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (REFERENCE / "cli.md").read_text(encoding="utf-8")))
    assert len(named) > 50
    assert named - known == set()


def test_verdicts_are_explained() -> None:
    documented = [verdict.strip("`") for verdict, _, code in rows("cli.md", 3) if code.isdigit()]
    assert documented == [KEPT, BROKEN, UNJUDGED]


class StillClock:
    """Time stands still, so that a pause of the machine costs no request."""

    def wall_ns(self) -> int:
        return 1_700_000_000 * 10**9

    def monotonic_ns(self) -> int:
        return 0


class TestCosts:
    """The table at the end of the page on stores, row by row."""

    async def measured(self) -> dict[str, dict[str, int]]:
        usage = Usage()
        ambient = Ambient(StillClock(), random.Random(4))
        store = Client(MemoryStore(), ambient=ambient, retry=RetryPolicy(), usage=usage)
        seen: dict[str, dict[str, int]] = {}

        def since(name: str) -> None:
            total = usage.by_verb
            seen[name] = {verb: count for verb, count in total.items() if count}
            usage.tallies.clear()

        first = await store.put("a", b"1", CREATE)
        since("won")
        assert isinstance(first, Written)
        await store.put("a", b"2", IfMatch(first.version))
        usage.tallies.clear()
        await store.put("a", b"3", IfMatch(first.version))
        since("lost")
        await store.get("a")
        await store.head("a")
        await store.range("a", 0, 1)
        await store.delete("a")
        since("reads")

        register: Register[int] = Register(store, "counter", Plain("test"), ambient)
        await register.edit("one", lambda value: (value or 0) + 1)
        since("first edit")
        await register.edit("two", lambda value: (value or 0) + 1)
        since("next edit")
        rival: Register[int] = Register(store, "counter", Plain("test"), ambient)
        await rival.edit("three", lambda value: (value or 0) + 1)
        usage.tallies.clear()
        await register.edit("four", lambda value: (value or 0) + 1)
        since("edit that lost")

        lease = Lease(store, "lease", "me", ambient)
        grant = await lease.acquire()
        since("acquire")
        await lease.renew(grant)
        since("renew")
        await lease.release(grant)
        since("release")
        return seen

    async def test_each_operation_costs_what_the_page_says(self) -> None:
        documented = dict(row for row in rows("stores.md", 2) if len(row) == 2)
        seen = await self.measured()
        assert seen["won"] == {"put": 1}
        assert documented["`put`, unconditional or won"] == "1"
        assert seen["lost"] == {"put": 1, "get": 1}
        assert documented["`put`, conditional and lost"].startswith("2: the PUT, and a GET")
        assert seen["reads"] == {"get": 1, "head": 1, "range": 1, "delete": 1}
        assert seen["first edit"] == {"get": 1, "put": 1}
        assert documented["register, first edit after a pause"] == "1 GET, 1 PUT"
        assert seen["next edit"] == {"put": 1}
        assert documented["register, edits in quick succession without contention"] == "1 PUT each"
        assert seen["edit that lost"] == {"put": 2, "get": 1}
        assert documented["register, edit that lost one race"] == "2 PUTs, 1 GET"
        assert (seen["acquire"], seen["renew"], seen["release"]) == ({"get": 1, "put": 1}, {"put": 1}, {"put": 1})
        assert documented["lease: acquire, renew, release"] == "1 GET and 1 PUT, then 1 PUT each"

    async def test_opening_costs_one_request(self) -> None:
        async with open_store("memory:") as store:
            assert store.usage.by_verb == {"get": 1}
