"""``holdfast doctor``: does this store keep the promises that Holdfast needs?

It runs every law against the user's own store, under a prefix that is emptied afterwards, and exits 0 only if no
violation was found. With ``--certify`` it then leaves a certificate that services look for at start.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Annotated, Any

import typer

from holdfast.base.errors import Denied, HoldfastError, Invalid, Unavailable
from holdfast.base.ids import Ambient
from holdfast.cli import options
from holdfast.cli.output import Columns, Output
from holdfast.cli.progress import live
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.client import Usage
from holdfast.objects.conformance.certificate import CERTIFICATE_KEY, certify, write_certificate
from holdfast.objects.conformance.examination import Connect, Examination
from holdfast.objects.conformance.laws import BROKEN, LAWS, UNJUDGED, Effort, Finding, Law
from holdfast.objects.open import backend
from holdfast.objects.place import Place
from holdfast.objects.uri import StoreSpec

app = noun_app()
_EFFORT = Effort()
_NAMES = [law.name for law in LAWS]


@dataclass(frozen=True)
class Plan:
    """What to examine, and how thoroughly."""

    effort: Effort = _EFFORT
    laws: Sequence[Law] = LAWS
    certify: bool = False


@dataclass
class Report:
    """The result of an examination."""

    spec: StoreSpec
    place: Place
    plan: Plan
    prefix: str
    usage: Usage
    findings: list[Finding] = field(default_factory=list)
    certificate: str | None = None
    """The key of the certificate that was written."""
    leftovers: str | None = None
    """Why the prefix could not be emptied, if it could not."""

    def judged(self, verdict: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == verdict]

    @property
    def weak(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_weak]

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
    law: Annotated[
        list[str] | None, options.choice("--law", _NAMES, "Run only this law; repeatable", metavar="NAME")
    ] = None,
    certify: Annotated[bool, typer.Option("--certify", help="Leave a certificate if every law is kept.")] = False,
) -> None:
    """Check that a store keeps the promises that Holdfast rests on."""
    laws = [each for each in LAWS if not law or each.name in law]
    if certify and len(laws) < len(LAWS):
        raise Invalid("a certificate needs every law", remedy="leave out --law or --certify")
    effort = Effort(races=races, rounds=rounds, keys=keys, large_bytes=_EFFORT.large_bytes)
    wanted = {"--races": (races, _EFFORT.races), "--rounds": (rounds, _EFFORT.rounds), "--keys": (keys, _EFFORT.keys)}
    low = [f"{name} {given}" for name, (given, least) in wanted.items() if given < least]
    if certify and low:
        needed = " ".join(f"{name} {least}" for name, (_, least) in wanted.items())
        raise Invalid(
            f"--certify needs at least {needed}, got {', '.join(low)}", remedy="leave out these options, or --certify"
        )
    spec = StoreSpec.parse(uri if uri is not None else shell.settings.store.uri, shell.settings)
    await run_doctor(shell.out, spec, Plan(effort, laws, certify))


async def run_doctor(
    out: Output, spec: StoreSpec, plan: Plan, *, ambient: Ambient | None = None, connect: Connect = backend
) -> None:
    """Examine, show the report, and certify if that was asked for; raises if a law was not kept."""
    ambient = ambient if ambient is not None else Ambient.system()
    examination = Examination(spec, effort=plan.effort, ambient=ambient, connect=connect)
    report = Report(spec, examination.place, plan, examination.prefix, examination.usage)
    try:
        async with examination:
            try:
                await _judge(out, examination, report)
            except asyncio.CancelledError:
                out.note(f"stopping: cleaning up under {examination.prefix} (press Ctrl-C again to leave it there)")
                raise
            if plan.certify and report.ok:
                number = version("holdfast")
                certificate = certify(
                    report.place, report.findings, plan.effort, holdfast_version=number, ambient=ambient
                )
                await write_certificate(examination.store, certificate, ambient)
                report.certificate = CERTIFICATE_KEY
    finally:
        if (error := examination.leftovers) is not None:
            report.leftovers = str(error)
            out.note(f"warning: could not clean up: {error}; delete the objects under {report.prefix} in {spec.uri}")
    if out.as_json:
        out.document(_document(report))
    else:
        _show(out, report)
    _raise_unless_ok(report)


async def _judge(out: Output, examination: Examination, report: Report) -> None:
    laws = report.plan.laws

    def line() -> str:
        done = len(report.findings)
        law = laws[min(done, len(laws) - 1)].name
        return f"{law}  {done}/{len(laws)} laws, {examination.usage.requests():,} requests"

    async with live(out, line):
        async for finding in examination.findings(laws):
            report.findings.append(finding)


def _raise_unless_ok(report: Report) -> None:
    total = len(report.findings)
    if broken := report.judged(BROKEN):
        raise HoldfastError(
            f"{report.spec.uri} broke {len(broken)} of {total} laws: {', '.join(each.law.name for each in broken)}",
            remedy="do not trust Holdfast's data to this store",
        )
    if unjudged := report.judged(UNJUDGED):
        finding = unjudged[0]
        kind = Denied if isinstance(finding.error, Denied) else Unavailable
        raise kind(
            f"{len(unjudged)} of {total} laws could not be judged; {finding.law.name}: {finding.figure}",
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


def _show(out: Output, report: Report) -> None:
    columns: Columns = {
        "law": lambda each: each.law.name,
        "verdict": "verdict",
        "figure": lambda each: f"{each.figure}, {each.confidence}" if each.kept and each.confidence else each.figure,
        "a failure would mean": lambda each: each.law.breach,
    }
    out.table(report.findings, columns)
    out.line("")
    usage = report.usage
    verbs = ", ".join(f"{count:,} {verb}" for verb, count in sorted(usage.by_verb.items()))
    priced = "about" if report.spec.scheme == "s3" else "on S3 about"
    out.line(f"spent: {usage.requests():,} requests ({verbs}), {priced} ${usage.dollars:.4f}")
    if report.ok:
        out.line(
            f"no violation found on {report.spec.uri} with {report.plan.effort.races} writers at once: "
            "evidence, not proof; more --races and --rounds look harder"
        )
        for each in report.weak:
            out.line(f"weak evidence for {each.law.name}: {each.confidence}")
    if report.certificate is not None:
        out.line(f"certificate written: {report.certificate}")


def _document(report: Report) -> dict[str, Any]:
    effort = report.plan.effort
    return {
        "store": report.spec.uri,
        "endpoint": report.place.endpoint or None,
        "ok": report.ok,
        "broken": [each.law.name for each in report.judged(BROKEN)],
        "unjudged": [each.law.name for each in report.judged(UNJUDGED)],
        "weak": [each.law.name for each in report.weak],
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
