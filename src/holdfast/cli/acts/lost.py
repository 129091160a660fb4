"""Writes that land while their answers are lost, or that arrive twice."""

from holdfast.cli.acts.counter import COUNTER, plus_one
from holdfast.cli.acts.stage import Stage, prove
from holdfast.objects.client import Client, Usage
from holdfast.objects.conformance.laws import Echoing
from holdfast.objects.open import backend
from holdfast.objects.register import Register
from holdfast.objects.store import CREATE, Lost

WRITES = 20


async def settled(stage: Stage) -> str:
    async with backend(stage.spec) as bare:
        repeating = Echoing(bare, Echoing.REPEAT)
        outcomes = [await repeating.put(f"demo/bare-{turn}", b"%d" % turn, CREATE) for turn in range(WRITES)]
        stage.charge({"put": 2 * WRITES})
        fooled = sum(isinstance(outcome, Lost) for outcome in outcomes)
        prove(fooled == WRITES, f"the fault did not happen: {fooled} of {WRITES} writes were refused")

        usage = Usage()
        for kind in (Echoing.LOSE, Echoing.REPEAT):
            store = Client(Echoing(bare, kind), ambient=stage.ambient, retry=stage.spec.retry, usage=usage)
            register = Register(store, f"demo/{kind}", COUNTER, stage.ambient)
            for turn in range(WRITES):
                stage.status = f"{kind}: write {turn + 1} of {WRITES}"
                await register.edit(f"turn-{turn}", plus_one)
            final = await register.read()
            counted = final.value if final is not None else None
            prove(counted == WRITES, f"{kind}: {WRITES} writes were acknowledged, the counter says {counted}")
        stage.charge(usage.by_verb)
    return f"a bare client takes {fooled} of its own {WRITES} writes for lost races; ours counts {2 * WRITES} exactly"
