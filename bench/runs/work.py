"""The workflow that is measured: steps of 1 KiB, one after the other. And how it is left unfinished."""

from holdfast import runs
from holdfast.objects import Client

RESULT = "x" * 1024


class Died(BaseException):
    """Stands for the end of a process: nothing after it runs, nothing is recorded."""


class Workload:
    """``dies`` is not part of the input: the same run can be left unfinished and gone on with."""

    def __init__(self) -> None:
        self.executed = 0
        self._dies = False

        @runs.workflow(version="1", name="bench")
        async def bench(ctx: runs.Context, steps: int) -> int:
            for number in range(steps):
                await ctx.step("turn", self._act, number)
            if self._dies:
                raise Died
            return steps

        self._workflow = bench

    async def run(self, store: Client, run_id: str, steps: int) -> None:
        """From the first request to success, whether or not some steps are recorded already."""
        outcome = await self._workflow.start(store, steps, run_id=run_id)
        if outcome.unwrap() != steps:
            raise RuntimeError(f"a run of {steps} steps returned {outcome.result}")

    async def leave_unfinished(self, store: Client, run_id: str, steps: int) -> None:
        """Record all steps, and nothing more."""
        self._dies = True
        try:
            await self._workflow.start(store, steps, run_id=run_id)
        except Died:
            return
        finally:
            self._dies = False
        raise RuntimeError("the run was to be left unfinished")

    async def _act(self, number: int) -> str:
        self.executed += 1
        return RESULT
