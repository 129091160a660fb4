"""What it all cost, and what one edit costs."""

from holdfast.cli.acts.counter import COUNTER, plus_one
from holdfast.cli.acts.stage import Stage, prove
from holdfast.objects.register import Register

EDITS = 100
MOST_READS = 10


async def requests(stage: Stage) -> str:
    async with stage.open() as store:
        before = dict(store.usage.by_verb)
        register = Register(store, "demo/bill", COUNTER, stage.ambient)
        for turn in range(EDITS):
            stage.status = f"edit {turn + 1} of {EDITS}"
            await register.edit(f"turn-{turn}", plus_one)
        spent = {verb: count - before.get(verb, 0) for verb, count in store.usage.by_verb.items()}
    reads = spent.pop("get", 0)
    # One read to begin with. On a machine that stops for a moment the register reads again, which is right.
    prove(spent == {"put": EDITS} and reads <= MOST_READS, f"{EDITS} edits cost {reads} GETs and {spent}")
    return (
        f"{EDITS} edits cost {EDITS} PUTs and {reads} GET; the demo itself, without collectors and drivers, "
        f"{stage.requests:,} requests, on S3 about ${stage.dollars:.4f}"
    )
