"""Writers killed with SIGKILL while they write."""

from holdfast.base import codec
from holdfast.cli.acts.counter import COUNTER
from holdfast.cli.acts.stage import Stage, prove
from holdfast.objects.register import Register

KEY = "demo/kill"
VICTIMS = 5
MANY = 1_000_000


async def nothing_lost(stage: Stage) -> str:
    acknowledged = landed = 0
    for number in range(1, VICTIMS + 1):
        async with stage.hands(KEY, [f"victim-{number}"], MANY) as (victim,):
            await victim.go()
            for _ in range(stage.ambient.rng.randint(3, 25)):
                await victim.step()
            await victim.kill()
        acknowledged += victim.acknowledged
        stage.status = f"{number} of {VICTIMS} writers killed, {acknowledged} increments acknowledged"
        landed = await _count(stage)
        # Words that were on their way to us when the writer died are lost with it; increments that landed are not.
        prove(landed >= acknowledged, f"{acknowledged} increments were acknowledged, the counter says {landed}")
    await _everything_is_whole(stage)
    async with stage.hands(KEY, ["successor"], 10) as (successor,):
        await successor.go()
        await successor.finish()
    final = await _count(stage)
    prove(final == landed + 10, f"a successor added 10 to {landed}, the counter says {final}")
    return f"{VICTIMS} writers killed, {acknowledged} acknowledged increments all there, the next writer went on"


async def _count(stage: Stage) -> int:
    async with stage.open() as store:
        found = await Register(store, KEY, COUNTER, stage.ambient).read()
    return int(found.value) if found is not None else 0


async def _everything_is_whole(stage: Stage) -> None:
    """Every object of the demo can be listed, read and parsed: nothing is half there."""
    async with stage.open() as store:
        async for page in store.list("demo/"):
            for entry in page.entries:
                found = await store.get(entry.key)
                codec.decode(found.body, key=entry.key)
                prove(len(found.body) == entry.size, f"{entry.key}: listed with {entry.size}, read {len(found.body)}")
