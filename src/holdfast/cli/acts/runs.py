"""A run whose process is killed again and again, and which does not start over."""

import json
from collections import Counter

from holdfast.cli.acts.errand import TURNS
from holdfast.cli.acts.stage import ProofFailed, Stage, prove
from holdfast.runs.journal.history import read_history

ERRAND = "holdfast.cli.acts.errand"
RUN_ID = "demo-errand"
KILLS = 4


async def survives(stage: Stage) -> str:
    done: Counter[int] = Counter()
    kills = 0
    while True:
        patience = stage.ambient.rng.randint(3, 8) if kills < KILLS else TURNS + 1
        result = await _call(stage, done, patience)
        if result is not None:
            break
        kills += 1
        stage.status = f"process {kills} killed after turn {max(done)}"
    async with stage.open() as store:
        history = await read_history(store, RUN_ID)
    recorded = [entry for entry in history.entries if entry.type == "step"] if history is not None else []
    repeated = sum(times - 1 for times in done.values())
    prove(result == TURNS * (TURNS + 1) // 2, f"the run says {result}")
    prove(len(recorded) == TURNS, f"{TURNS} turns were made, {len(recorded)} are recorded")
    prove(repeated <= kills, f"{repeated} turns were repeated after {kills} kills: {done}")
    return f"{TURNS} turns through {kills} kills; {repeated} were not yet recorded and ran again, the others never did"


async def _call(stage: Stage, done: Counter[int], patience: int) -> int | None:
    """Call the run in a process of its own, and kill it after so many turns; the result if it came to its end."""
    async with stage.program(ERRAND, RUN_ID) as process:
        if process.stdout is None:
            return None
        async for line in process.stdout:
            words = line.decode()
            if words.startswith("{"):
                said = json.loads(words)
                stage.charge(said["requests"])
                return int(said["result"])
            done[int(words.split()[1])] += 1
            patience -= 1
            if patience == 0:
                process.kill()
                return None
        _, stderr = await process.communicate()
    raise ProofFailed(" ".join(["the run's process ended by itself;", *stderr.decode().strip().splitlines()[-1:]]))
