"""Scenarios are found by name or as module:Class; seeds give independent streams."""

from pathlib import Path

import pytest

from holdfast.base.errors import Invalid, NotFound
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.scenario import built_in, find
from holdfast.sim.scenarios.store import StoreCas
from holdfast.sim.world import Seed


def test_every_scenario_is_found_by_its_name_and_describes_itself() -> None:
    known = built_in()
    assert known["store-cas"] is StoreCas
    assert {"register-counter", "register-history", "lease", "lease-fenced-writes", "laws"} <= known.keys()
    for name, scenario in known.items():
        assert find(name) is scenario
        assert scenario.name == name
        assert scenario.description().endswith(".")


def test_a_user_names_a_class_in_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_scenarios.py").write_text(
        "from holdfast.sim.scenarios.store import StoreCas\nclass Mine(StoreCas):\n    '''Mine.'''\nother = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert issubclass(find("my_own_scenarios:Mine"), StoreCas)
    with pytest.raises(Invalid, match="not a Scenario"):
        find("my_own_scenarios:other")


@pytest.mark.parametrize("name", ["nonsense", "no_such_module:X", "holdfast.sim.scenarios.store:X"])
def test_an_unknown_scenario_is_one_clear_error(name: str) -> None:
    with pytest.raises(NotFound, match=name.split(":", maxsplit=1)[0]):
        find(name)


def test_streams_are_independent_and_repeatable() -> None:
    seed = Seed(7)
    first = [seed.stream("faults").random() for _ in range(3)]
    assert len(set(first)) == 1
    assert seed.stream("faults").random() != seed.stream("schedule").random()
    assert Seed(8).stream("faults").random() != first[0]


def test_drawn_settings_differ_between_seeds_and_can_be_fixed() -> None:
    faults = [Faults.drawn(Seed(number).stream("settings"), lost_response=0.25) for number in range(20)]
    assert len(set(faults)) == 20
    assert {drawn.lost_response for drawn in faults} == {0.25}
    troubles = [Troubles.drawn(Seed(number).stream("settings")) for number in range(40)]
    assert {drawn.skew_ms for drawn in troubles} == {0.0, 20.0, 5_000.0}
