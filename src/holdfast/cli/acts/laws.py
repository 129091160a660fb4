"""Every law, on the demo's own store."""

from holdfast.base.errors import HoldfastError
from holdfast.cli.acts.stage import ProofFailed, Stage, prove
from holdfast.objects.conformance.examination import examine
from holdfast.objects.conformance.laws import LAWS, Effort

EFFORT = Effort(races=6, rounds=5, keys=1_001, large_bytes=4 * 1024 * 1024)


async def every_law(stage: Stage) -> str:
    def on_leftovers(prefix: str, error: HoldfastError) -> None:
        raise ProofFailed(f"{prefix} could not be cleaned up: {error}")

    async with examine(stage.spec, effort=EFFORT, ambient=stage.ambient, on_leftovers=on_leftovers) as examination:
        held = 0
        stage.status = LAWS[0].name
        async for finding in examination.findings(LAWS):
            prove(finding.kept, f"{finding.law.name}: {finding.figure}")
            held += 1
            stage.status = f"{held} of {len(LAWS)} laws hold: {finding.law.name}, {finding.figure}"
    stage.charge(examination.usage.by_verb)
    return f"{held} laws, {EFFORT.rounds} rounds of {EFFORT.races} writers at once"
