"""Events whose handler fails: retried until it works, or put aside when it never will."""

from collections import Counter

from holdfast.bus import Context, Event, Retry, on
from holdfast.cli.acts.stage import Stage, prove
from holdfast.platform.open import Holdfast

ORDERS = 12
ATTEMPTS = 3


class DemoOrder(Event):
    number: int


async def retried(stage: Stage) -> str:
    tries: Counter[int] = Counter()

    @on(DemoOrder, retry=Retry(attempts=ATTEMPTS, base_ms=1, max_ms=10))
    async def bill(ctx: Context, event: DemoOrder) -> None:
        tries[event.number] += 1
        stage.status = f"order {event.number}, try {tries[event.number]}"
        if event.number == 0:
            raise ValueError("an order that nobody can bill")
        if event.number % 3 == 0 and tries[event.number] == 1:
            raise ConnectionError("the bank did not answer")

    async with stage.open() as store:
        hf = Holdfast(store)
        for number in range(ORDERS):
            for _ in range(2):  # a publisher that does not trust its first try; the key makes it one event
                await hf.bus("demo").publish(DemoOrder(number=number), key=f"order-{number}")
        worked = await hf.run([bill], namespace="demo", until_idle=True)
        again = await hf.run([bill], namespace="demo", until_idle=True)
    expected = {number: ATTEMPTS if number == 0 else 2 if number % 3 == 0 else 1 for number in range(ORDERS)}
    prove(dict(tries) == expected, f"the handler was called {dict(tries)}")
    prove((worked.handled, worked.dead) == (ORDERS - 1, 1), f"the worker says {worked}")
    prove((again.handled, again.dead) == (0, 0), f"a second worker says {again}")
    return f"{ORDERS} orders published twice each, billed once each; {worked.dead} that always fails is a dead letter"
