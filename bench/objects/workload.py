"""The four operations as plans for any client: the same keys and bodies for both sides of a pair."""

from dataclasses import dataclass

from bench.lib import Contender
from bench.objects.clients import Client, Plan, Step, Verb

BODY_BYTES = 4096
LISTED = 1000
VERBS: tuple[Verb, ...] = ("create", "replace", "get", "list")
TITLES = {"create": "PUT create", "replace": "PUT if-match", "get": "GET", "list": f"LIST {LISTED}"}


@dataclass(frozen=True)
class Workload:
    verb: Verb
    concurrency: int
    operations: int
    """In one run; for ``list`` a tenth of them."""

    @property
    def name(self) -> str:
        return f"{TITLES[self.verb]}, {self.concurrency} at once"

    def contender(self, client: Client) -> Contender:
        async def run(number: int) -> int:
            plan = self.plan(number)
            await client.run(plan)
            return sum(len(steps) for steps in plan)

        return Contender(run, lambda: client.requests)

    def plan(self, number: int) -> Plan:
        each = max(1, self.operations // self.concurrency // (10 if self.verb == "list" else 1))
        return [[self._step(number, worker, turn) for turn in range(each)] for worker in range(self.concurrency)]

    def _step(self, number: int, worker: int, turn: int) -> Step:
        match self.verb:
            case "create":
                key = f"create/{self.concurrency}/{number}/{worker}-{turn}"
                return Step("create", key, body(key))
            case "replace":
                # A key per worker, as a register has one writer at a time.
                return Step("replace", f"replace/{worker}", body(f"{self.concurrency} {number} {turn}"))
            case "get":
                return Step("get", listed_key((worker * 61 + turn * 7) % LISTED))
            case "list":
                return Step("list", "listed/")


def preparation(concurrency: int) -> Plan:
    """What every workload finds: a thousand objects to read and to list, and an object to replace per worker."""
    steps = [Step("create", listed_key(number), body(f"listed {number}")) for number in range(LISTED)]
    steps += [Step("create", f"replace/{worker}", body("first")) for worker in range(concurrency)]
    return [steps[worker::concurrency] for worker in range(concurrency)]


def listed_key(number: int) -> str:
    return f"listed/{number:04}"


def body(text: str) -> bytes:
    return text.encode().ljust(BODY_BYTES, b".")
