"""``holdfast sim``: list, run, replay, explore, all; a broken seed is one line and the command that replays it."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast.sim.scenario import built_in

Capture = pytest.CaptureFixture[str]

BROKEN = '''
from holdfast.objects.store import CREATE, Lost
from holdfast.sim.scenarios.store import StoreCas
from holdfast.objects.client import Client

class Forgetful(Client):
    """Reports a lost race without reading back."""
    async def put(self, key, body, mode=CREATE):
        return await self._send(key, body, mode)

class Broken(StoreCas):
    """A scenario that fails."""
    name = "broken"

    def stack(self, backend, ambient):
        return Forgetful(backend, ambient=ambient, retry=self.retry)

    def check(self, world):
        yield from super().check(world)
        from holdfast.sim.history import Violation
        if any(operation.outcome.__class__.__name__ == "Open" for operation in world.operations):
            yield Violation("nothing stays open", "something did")
'''


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "broken_scenario.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "broken_scenario:Broken"


def test_list_names_every_scenario(capsys: Capture) -> None:
    assert run(["sim", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(re.search(rf"^{name} +\S", printed, re.MULTILINE) for name in built_in())


def test_run_counts_seeds_operations_and_faults(capsys: Capture) -> None:
    assert run(["sim", "run", "store-cas", "--seeds", "1..30", "--jobs", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^store-cas +30 +1,\d\d\d ", printed, re.MULTILINE)
    assert re.search(r"^faults: .*lost response \d", printed, re.MULTILINE)
    assert re.search(r"^[\d.]+ s, [\d,]+ runs/s, [\d,]+ operations/s$", printed, re.MULTILINE)


def test_run_prints_one_document_with_json(capsys: Capture) -> None:
    assert run(["sim", "run", "store-cas", "--seeds", "7", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    totals = json.loads(line)["scenarios"]["store-cas"]
    assert (totals["runs"], totals["broken"]) == (1, {})


def test_a_broken_seed_comes_with_the_command_that_replays_it(broken: str, capsys: Capture) -> None:
    assert run(["sim", "run", broken, "--seeds", "1..20"]) == 1
    shown = capsys.readouterr()
    command = shown.err.splitlines()[-1].removeprefix("hint: ")
    assert re.fullmatch(rf"holdfast sim replay {broken} --seed \d+ --trace", command)
    assert command in shown.out

    assert run(command.split()[1:]) == 1
    replayed = capsys.readouterr()
    assert re.search(r"^ +\d\.\d{6}  store +serves #\d+ put cell", replayed.out, re.MULTILINE)
    assert "broken: " in replayed.out
    assert "seed" in replayed.err


def test_replay_without_trace_is_short(capsys: Capture) -> None:
    assert run(["sim", "replay", "lease", "--seed", "5"]) == 0
    settings, more, *events, figures, verdict = capsys.readouterr().out.splitlines()
    assert settings.startswith("LeaseTenants(")
    assert re.fullmatch(r"\.\.\. [\d,]+ events before these; --trace prints everything, requests too", more)
    assert len(events) == 20
    assert not any("sends #" in event or "hears of #" in event for event in events)
    assert any("  ends " in event for event in events)
    assert re.fullmatch(r"[\d,]+ operations, [\d,]+ requests, [\d,]+ faults", figures)
    assert verdict == "no rule was broken"


def test_explore_counts_and_finds_nothing(capsys: Capture) -> None:
    assert run(["sim", "explore", "store-listing"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert re.match(r"\d+ states, \d+ orders of events", first)
    assert second == "no order of events breaks a rule"


def test_explore_prints_the_command_that_follows_a_bad_order(broken: str, capsys: Capture) -> None:
    assert run(["sim", "explore", broken, "--crashes", "0"]) == 1
    command = capsys.readouterr().err.splitlines()[-1].removeprefix("hint: ")
    assert re.fullmatch(rf"holdfast sim explore {broken} --crashes 0 --choices [\d.]+", command)
    assert run(command.split()[1:]) == 1
    assert "hears of" in capsys.readouterr().out


@pytest.mark.soak
def test_all_runs_every_scenario_for_a_while(capsys: Capture) -> None:
    assert run(["sim", "all", "--minutes", "0.01", "--jobs", "2", "--first-seed", "50"]) == 0
    shown = capsys.readouterr()
    assert "from seed 50" in shown.err
    assert all(re.search(rf"^{name} ", shown.out, re.MULTILINE) for name in [*built_in(), "all"])


def test_a_process_that_dies_is_one_clear_error(own: Callable[[str, str], None], capsys: Capture) -> None:
    own("return cls()", "import os; os._exit(3)")
    assert run(["sim", "run", MINE, "--seeds", "1..50", "--jobs", "2"]) == 1
    assert capsys.readouterr().err.startswith("error: a process of the simulator died\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "nonsense"], 4, "no scenario is called nonsense"),
        (["explore", "laws"], 2, "scenario laws has no small configuration"),
        (["explore", "runs-workflow", "--choices", "1"], 2, "scenario runs-workflow has no small configuration"),
        (["run", "store-cas", "--seeds", "5..1"], 2, "not a range of seeds"),
        (["replay", "no_such_module:X", "--seed", "1"], 4, "no_such_module"),
        (["explore", "store-cas", "--choices", "1.x"], 2, "not a list of choices"),
        (["explore", "store-cas", "--choices", "0.99"], 2, "choice number 2 is 99"),
        (["run", "register-countr"], 4, "no scenario is called register-countr"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], code: int, words: str, capsys: Capture) -> None:
    assert run(["sim", *arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert words in shown.err.splitlines()[0]


OWN = """
from dataclasses import dataclass
from typing import ClassVar
from holdfast.sim import Scenario

@dataclass(frozen=True, kw_only=True)
class Mine(Scenario):
    name: ClassVar[str] = "mine"

    @classmethod
    def drawn(cls, rng):
        return cls()

    def begin(self, world):
        world.start("one", self.actor)

    async def actor(self, process):
        await process.store.put("a", b"x")

    def check(self, world):
        yield from ()
"""
MINE = "mine_own:Mine"
OF = f"scenario {MINE}"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """A module of the user's with one change."""

    def write(old: str, new: str) -> None:
        (tmp_path / "mine_own.py").write_text(OWN.replace(old, new) if old else f"{OWN}\n{new}\n")

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("mine_own", None)
    yield write
    sys.modules.pop("mine_own", None)


@pytest.mark.parametrize(
    ("old", "new", "arguments", "said"),
    [
        ("", "def", ["run", MINE], "module mine_own cannot be imported: SyntaxError: "),
        ("def begin", "def start", ["run", MINE], "mine_own:Mine does not define begin\n"),
        ("name: ClassVar", "nome: ClassVar", ["run", MINE], "mine_own:Mine has no name\n"),
        (
            "return cls()",
            "return cls(tills=3)",
            ["replay", MINE, "--seed", "7"],
            f"{OF}, seed 7: TypeError: ",
        ),
        (
            "yield from ()",
            "raise KeyError",
            ["explore", MINE],
            f"{OF}: KeyError, in check, mine_own.py line 21\n",
        ),
        (
            "yield from ()",
            "yield world.no",
            ["run", MINE, "--seeds", "4..5"],
            f"{OF}, seed 4: AttributeError: ",
        ),
    ],
)
def test_a_mistake_in_a_users_scenario_is_one_line(
    old: str, new: str, arguments: list[str], said: str, own: Callable[[str, str], None], capfd: Capture
) -> None:
    own(old, new)
    assert run(["sim", *arguments]) == 2
    shown = capfd.readouterr()
    assert shown.err.startswith(f"error: {said}")
    assert len(shown.err.splitlines()) == 2
    assert "Traceback" not in shown.out


def test_tracebacks_of_users_scenarios_come_with_verbose(own: Callable[[str, str], None], capfd: Capture) -> None:
    own("yield from ()", "raise KeyError('lost')")
    assert run(["--verbose", "sim", "run", MINE, "--seeds", "1"]) == 2
    assert "raise KeyError('lost')" in capfd.readouterr().err
