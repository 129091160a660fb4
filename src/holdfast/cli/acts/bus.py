"""Events whose handler fails: retried until it works, or put aside when it never will."""

from collections import Counter

from holdfast.bus import Context, Retry, on
from holdfast.cli.acts.incidents import NAMESPACE, IncidentOpened
from holdfast.cli.acts.ontology import COMMITS, OPERATORS, TOTAL
from holdfast.cli.acts.stage import Stage, prove
from holdfast.platform.open import Holdfast

ATTEMPTS = 3
HOPELESS = "operator-1-0"
"""An incident whose operator has no telephone."""
UNLUCKY = "operator-2-"
"""The beginning of those whose first call does not get through."""


async def retried(stage: Stage) -> str:
    tries: Counter[str] = Counter()

    @on(IncidentOpened, retry=Retry(attempts=ATTEMPTS, base_ms=1, max_ms=10))
    async def call_out(ctx: Context, event: IncidentOpened) -> None:
        name = event.incident
        tries[name] += 1
        stage.status = f"calling out for {name}, try {tries[name]}"
        if name == HOPELESS:
            raise ValueError("an operator without a telephone")
        if name.startswith(UNLUCKY) and tries[name] == 1:
            stage.tell(f"{name}: the line was busy; the event goes back and is tried again")
            raise ConnectionError("the line was busy")

    async with stage.open() as store:
        hf = Holdfast(store)
        worked = await hf.run([call_out], namespace=NAMESPACE, until_idle=True)
        again = await hf.run([call_out], namespace=NAMESPACE, until_idle=True)
    names = [f"operator-{operator}-{number}" for operator in range(OPERATORS) for number in range(COMMITS)]
    expected = {name: ATTEMPTS if name == HOPELESS else 2 if name.startswith(UNLUCKY) else 1 for name in names}
    prove(dict(tries) == expected, f"the handler was called {dict(tries)}")
    prove((worked.handled, worked.dead) == (TOTAL - 1, 1), f"the worker says {worked}")
    prove((again.handled, again.dead) == (0, 0), f"a second worker says {again}")
    return f"{worked.handled} calls made, once each; {worked.dead} that failed {ATTEMPTS} times is a dead letter"
