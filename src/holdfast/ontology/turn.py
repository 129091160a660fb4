"""Whose turn it is to write: what a committer asks of a lock. For fairness, never for safety."""

from typing import Protocol


class Turn(Protocol):
    """Whose turn it is to write: for fairness, never for safety."""

    async def take(self) -> bool:
        """Wait for it. True if somebody else may have had it since we did."""
        ...

    async def try_take(self) -> bool:
        """Without waiting: whether it is ours."""
        ...

    def guard(self) -> None:
        """``Conflict`` unless it is surely still ours for a while."""
        ...

    def committed(self) -> None:
        """One commit of this turn is done."""
        ...

    def done(self) -> None:
        """Nothing is under way now, however it ended."""
        ...

    def keep(self, tasks: int) -> None:
        """So many more, or fewer, want it kept while they work, even if no commit is under way."""
        ...


class Open:
    """A turn that nobody has to wait for."""

    async def take(self) -> bool:
        return False

    async def try_take(self) -> bool:
        return True

    def guard(self) -> None:
        return

    def committed(self) -> None:
        return

    def done(self) -> None:
        return

    def keep(self, tasks: int) -> None:
        return
