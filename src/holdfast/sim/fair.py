"""Whose turn it is when several scenarios share a time: whoever has had the least of it. Pure.

Seeds of one scenario take a thousand times as long as seeds of another, so equal numbers of seeds would leave the last
in the row without any. Every scenario gets one seed first, however short the time; after that as many at once as take
half a second.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.sim.pool import Task

TURN_S = 0.5
MOST_SEEDS = 200
"""Per turn."""
GROWTH = 4
"""How much longer a turn may be than all before it: the first seeds tell little of the others."""


@dataclass
class _Account:
    next_seed: int
    spent_s: float = 0.0
    runs: int = 0
    reserved_s: dict[int, float] = field(default_factory=dict)
    """For turns that are being taken, by their first seed."""

    @property
    def per_run_s(self) -> float:
        return self.spent_s / self.runs if self.runs else TURN_S


class FairShares:
    def __init__(self, scenarios: Iterable[str], first_seed: int) -> None:
        self._accounts = {name: _Account(first_seed) for name in scenarios}
        self._unheard = list(self._accounts)

    @property
    def all_had_a_turn(self) -> bool:
        return not self._unheard

    def next(self) -> Task:
        if self._unheard:
            name, count = self._unheard.pop(0), 1
        else:
            name = min(self._accounts, key=lambda each: self._total(self._accounts[each]))
            known = self._accounts[name]
            count = max(1, min(MOST_SEEDS, GROWTH * known.runs, int(TURN_S / max(known.per_run_s, 1e-9))))
        account = self._accounts[name]
        task = Task(name, account.next_seed, count)
        account.reserved_s[account.next_seed] = count * account.per_run_s
        account.next_seed += count
        return task

    def done(self, task: Task, seconds: float) -> None:
        account = self._accounts[task.scenario]
        del account.reserved_s[task.first]
        account.spent_s += seconds
        account.runs += task.count

    @staticmethod
    def _total(account: _Account) -> float:
        return account.spent_s + sum(account.reserved_s.values())
