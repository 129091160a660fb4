"""``holdfast doctor``: does this store keep the promises that Holdfast needs?

It runs every law against the user's own store, under a prefix that is emptied afterwards, and exits 0 only if no
violation was found. With ``--certify`` it then leaves a certificate that services look for at start.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import version
from typing import Annotated, Any

import typer

from holdfast.base.errors import Denied, HoldfastError, Invalid, Unavailable
from holdfast.base.ids import Ambient
from holdfast.cli.output import Output
from holdfast.cli.progress import Checklist, Step, live
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.client import Usage
from holdfast.objects.conformance.certificate import (
    CERTIFICATE_KEY,
    LEAST,
    certify,
    too_little,
    weak,
    write_certificate,
)
from holdfast.objects.conformance.examination import Connect, Examination, examine
from holdfast.objects.conformance.laws import BROKEN, LAWS, UNJUDGED, Effort, Finding, Law
from holdfast.objects.open import backend
from holdfast.objects.place import Place
from holdfast.objects.uri import StoreSpec

app = noun_app()
_EFFORT = Effort()


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    effort: Effort = _EFFORT
    laws: Sequence[Law] = LAWS
    certify: bool = False


@dataclass
class Report:
    """What was found. ``certificate`` is the key of the certificate that was written."""

    spec: StoreSpec
    place: Place
    plan: Plan
    prefix: str
    usage: Usage
    findings: list[Finding] = field(default_factory=list)
    certificate: str | None = None
    leftovers: str | None = None
    """Why the prefix could not be emptied, if it could not."""

    @property
    def broken(self) -> list[str]:
        return [finding.law.name for finding in self.findings if finding.verdict == BROKEN]

    @property
    def unjudged(self) -> list[str]:
        return [finding.law.name for finding in self.findings if finding.verdict == UNJUDGED]

    @property
    def weak(self) -> list[Finding]:
        return weak(self.findings)

    @property
    def ok(self) -> bool:
        """Whether every law was kept; for a certificate, with strong evidence."""
        return all(finding.kept for finding in self.findings) and not (self.plan.certify and self.weak)


@app.command()
async def doctor(
    shell: Shell,
    uri: Annotated[str | None, typer.Argument(metavar="URI", help="The store to examine; default: --store.")] = None,
    races: Annotated[int, typer.Option(min=2, help="Writers at once in every race.")] = _EFFORT.races,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of every race; a race also ends after 30 s.")
    ] = _EFFORT.rounds,
    keys: Annotated[int, typer.Option(min=1, help="Objects in the listing law.")] = _EFFORT.keys,
    law: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Run only this law; repeatable.")] = None,
    certify: Annotated[bool, typer.Option("--certify", help="Leave a certificate if every law is kept.")] = False,
) -> None:
    """Check that a store keeps the promises Holdfast rests on."""
    laws = _chosen(law or [])
    if certify and len(laws) < len(LAWS):
        raise Invalid("a certificate needs every law", remedy="leave out --law or --certify")
    effort = Effort(races=races, rounds=rounds, keys=keys, large_bytes=_EFFORT.large_bytes)
    if certify and (missing := too_little(effort)) is not None:
        raise Invalid(
            f"--certify needs at least --races {LEAST.races} --rounds {LEAST.rounds} --keys {LEAST.keys},"
            f" got {missing}",
            remedy="leave out these options, or --certify",
        )
    spec = StoreSpec.parse(uri if uri is not None else shell.settings.store.uri, shell.settings)
    plan = Plan(effort, laws, certify)
    await run_doctor(shell.out, spec, plan)


async def run_doctor(
    out: Output, spec: StoreSpec, plan: Plan, *, ambient: Ambient | None = None, connect: Connect = backend
) -> None:
    """Examine, show, and certify if that was asked for; raises when a law was found broken."""
    ambient = ambient if ambient is not None else Ambient.system()
    leftovers: list[HoldfastError] = []

    def on_leftovers(prefix: str, error: HoldfastError) -> None:
        leftovers.append(error)
        out.note(f"warning: could not clean up: {error}; delete what is under {prefix} in {spec.uri}")

    async with examine(
        spec, effort=plan.effort, ambient=ambient, connect=connect, on_leftovers=on_leftovers
    ) as examination:
        report = Report(spec, examination.place, plan, examination.prefix, examination.usage)
        try:
            await _judge(out, examination, report)
        except asyncio.CancelledError:
            out.note(f"stopping: cleaning up under {examination.prefix} (press Ctrl-C again to leave it there)")
            raise
        if plan.certify and report.ok:
            await _certify(examination, report, ambient)
    report.leftovers = str(leftovers[0]) if leftovers else None
    _show(out, report)
    _raise_unless_ok(report)


def _raise_unless_ok(report: Report) -> None:
    total = len(report.findings)
    if report.broken:
        raise HoldfastError(
            f"{report.spec.uri} broke {len(report.broken)} of {total} laws: {', '.join(report.broken)}",
            remedy="do not trust Holdfast's data to this store",
        )
    if report.unjudged:
        finding = next(each for each in report.findings if each.verdict == UNJUDGED)
        kind = Denied if isinstance(finding.error, Denied) else Unavailable
        raise kind(
            f"{len(report.unjudged)} of {total} laws could not be judged; {finding.law.name}: {finding.figure}",
            remedy=finding.error.remedy if finding.error is not None else None,
        )
    if not report.ok:
        finding = report.weak[0]
        raise Unavailable(
            f"{len(report.weak)} of {total} laws could not be judged for a certificate; "
            f"{finding.law.name}: {finding.confidence}",
            remedy="a memory store cannot be certified: its writes never overlap"
            if report.spec.scheme == "memory"
            else "run holdfast doctor --certify again, closer to the store or with more --races",
        )


async def _judge(out: Output, examination: Examination, report: Report) -> None:
    usage = examination.usage
    laws = report.plan.laws
    checklist = Checklist(
        [Step(law.name) for law in laws],
        lambda: f"{len(report.findings)}/{len(laws)} laws, {usage.requests():,} requests",
    )
    async with live(out, checklist.draw):
        checklist.begin(0)
        async for finding in examination.findings(laws):
            checklist.end(len(report.findings), good=finding.kept, detail=finding.figure)
            report.findings.append(finding)
            if len(report.findings) < len(laws):
                checklist.begin(len(report.findings))


async def _certify(examination: Examination, report: Report, ambient: Ambient) -> None:
    certificate = certify(
        report.place, report.findings, report.plan.effort, holdfast_version=version("holdfast"), ambient=ambient
    )
    await write_certificate(examination.store, certificate, ambient)
    report.certificate = CERTIFICATE_KEY


def _chosen(names: Sequence[str]) -> Sequence[Law]:
    known = {law.name: law for law in LAWS}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"laws: {', '.join(known)}"
            raise Invalid(f"no law is called {name!r}", remedy=hint)
    return [law for law in LAWS if law.name in names] if names else LAWS


def _show(out: Output, report: Report) -> None:
    if out.as_json:
        out.document(as_document(report))
        return
    out.table(
        ("law", "verdict", "figure", "a failure would mean"),
        [(each.law.name, each.verdict, _figure(each), each.law.breach) for each in report.findings],
    )
    out.line("")
    usage = report.usage
    verbs = ", ".join(f"{count:,} {verb}" for verb, count in sorted(usage.by_verb.items()))
    priced = "about" if report.spec.scheme == "s3" else "on S3 about"
    out.line(f"spent: {usage.requests():,} requests ({verbs}), {priced} ${usage.dollars:.4f}")
    if report.ok:
        effort = report.plan.effort
        out.line(
            f"no violation found on {report.spec.uri} with {effort.races} writers at once: "
            "evidence, not proof; more --races and --rounds look harder"
        )
        for each in report.weak:
            out.line(f"weak evidence for {each.law.name}: {each.confidence}")
    if report.certificate is not None:
        out.line(f"certificate written: {report.certificate}")


def _figure(finding: Finding) -> str:
    return f"{finding.figure}, {finding.confidence}" if finding.kept and finding.confidence else finding.figure


def as_document(report: Report) -> dict[str, Any]:
    """The report for programs."""
    effort = report.plan.effort
    return {
        "store": report.spec.uri,
        "endpoint": report.place.endpoint or None,
        "ok": report.ok,
        "broken": report.broken,
        "unjudged": report.unjudged,
        "weak": [finding.law.name for finding in report.weak],
        "laws": [
            {
                "law": each.law.name,
                "promise": each.law.promise,
                "verdict": each.verdict,
                "figure": each.figure,
                "breach": each.law.breach,
                "seconds": round(each.seconds, 3),
                "overlapping": each.confidence.observed if each.confidence else None,
            }
            for each in report.findings
        ],
        "races": effort.races,
        "rounds": effort.rounds,
        "overlapping_wanted": effort.overlapping,
        "keys": effort.keys,
        "large_bytes": effort.large_bytes,
        "requests": report.usage.by_verb,
        "dollars": round(report.usage.dollars, 6),
        "prefix": report.prefix,
        "leftovers": report.leftovers,
        "certificate": report.certificate,
        "version": version("holdfast"),
    }
