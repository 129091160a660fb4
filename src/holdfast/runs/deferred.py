"""Entries that wait for the moment when whoever made them goes on: they are written with what comes next."""

import asyncio
from collections.abc import Container
from typing import Any

from holdfast.runs.entry import Draft

Whose = asyncio.Task[Any] | None


class Deferred:
    def __init__(self) -> None:
        self._kept: list[tuple[Whose, Draft]] = []

    def keep(self, draft: Draft) -> None:
        self._kept.append((asyncio.current_task(), draft))

    def take(self, *whose: Whose) -> list[Draft]:
        """What these tasks have kept, in order; without a task, what all have."""
        if not self._kept:
            return []
        due = [draft for task, draft in self._kept if not whose or task in whose]
        self._kept = [(task, draft) for task, draft in self._kept if whose and task not in whose]
        return due

    def due(self, main: Whose) -> list[Draft]:
        """What goes with the next entry of this task: its own, and if it is the main one, everybody's."""
        if not self._kept:
            return []
        task = asyncio.current_task()
        return self.take() if task is main else self.take(task)

    def hand_over(self, whose: Container[Whose]) -> None:
        """This task answers from now on for what these have kept."""
        mine = asyncio.current_task()
        self._kept = [(mine if task in whose else task, draft) for task, draft in self._kept]

    def drop(self) -> None:
        self._kept.clear()
