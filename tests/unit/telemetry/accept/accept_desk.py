"""What tests of acceptance share: collectors on one shelf, with scripted answers and counted requests."""

import random
from collections import Counter

from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.uri import StoreSpec
from holdfast.sim import ingest_kit as kit
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.manifest import AcceptedManifest
from tests.unit.objects.scripted import Scripted
from tests.unit.runs.desk import Watch


class AcceptDesk:
    def __init__(self) -> None:
        self.shelf = Shelf()
        self.watch = Watch()
        self.effects: list[tuple[str, str]] = []
        self._seeds = iter(range(1, 1_000))

    def ambient(self) -> Ambient:
        return Ambient(self.watch, random.Random(next(self._seeds)))

    def store(self, *script: str, usage: Usage | None = None, attempts: int = 3) -> Client:
        backend = Scripted(*script, inner=MemoryStore(self.shelf, clock=self.watch))
        retry = RetryPolicy(attempts=attempts, base_ms=0, max_ms=0)
        return Client(backend, ambient=self.ambient(), retry=retry, usage=usage, spec=StoreSpec("memory", "desk"))

    def collector(
        self, name: str = "collector-1", *script: str, usage: Usage | None = None, attempts: int = 3
    ) -> Collector:
        def on_accepted(manifest: AcceptedManifest, submission: Submission) -> None:
            self.effects.append((name, submission.frame_sha256))

        return Collector(
            self.store(*script, usage=usage, attempts=attempts),
            self.ambient(),
            kit.authority(Acceptance.S3_MANIFEST),
            CollectorOptions(name),
            on_accepted=on_accepted,
        )

    def families(self) -> Counter[str]:
        return Counter(key.partition("/")[0] for key in self.shelf.objects)
