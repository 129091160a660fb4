"""What tests of spools share: a collector that lands in a scripted store."""

from holdfast.objects.client import Usage
from holdfast.sim import ingest_kit as kit
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import CollectorOptions
from holdfast.telemetry.accept.landing import SpoolCollector, SpoolOptions
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import Spool
from tests.unit.telemetry.accept.accept_desk import AcceptDesk


class SpoolDesk(AcceptDesk):
    def spooler(
        self, spool: Spool, *script: str, usage: Usage | None = None, interval_ms: int = 1_000
    ) -> SpoolCollector:
        def on_accepted(manifest: AcceptedManifest, submitted: Submission) -> None:
            self.effects.append((manifest.collector_id, submitted.frame_sha256))

        return SpoolCollector(
            spool,
            self.store(*script, usage=usage),
            self.ambient(),
            kit.authority(Acceptance.LOCAL_SPOOL),
            CollectorOptions("spooler"),
            spooling=SpoolOptions(interval_ms),
            on_accepted=on_accepted,
        )
