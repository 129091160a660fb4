"""Several processes, one counter, an exact sum."""

from holdfast.base.aio import map_bounded
from holdfast.cli.acts.counter import COUNTER
from holdfast.cli.acts.stage import Hand, Stage, prove
from holdfast.objects.register import Register

KEY = "demo/race"
PROCESSES = 6
TURNS = 25


async def exact_sum(stage: Stage) -> str:
    names = [f"process-{number}" for number in range(1, PROCESSES + 1)]
    stage.status = f"starting {PROCESSES} processes"
    async with stage.hands(KEY, names, TURNS) as hands:
        for hand in hands:
            await hand.go()
        await map_bounded(hands, Hand.finish, limit=len(hands))
    acknowledged = sum(hand.acknowledged for hand in hands)
    async with stage.open() as store:
        final = await Register(store, KEY, COUNTER, stage.ambient).read()
    counted = final.value if final is not None else None
    prove(acknowledged == PROCESSES * TURNS, f"only {acknowledged} of {PROCESSES * TURNS} increments were acknowledged")
    prove(counted == acknowledged, f"{acknowledged} increments were acknowledged, the counter says {counted}")
    return f"{PROCESSES} processes made {acknowledged} increments, the counter says {counted}"
