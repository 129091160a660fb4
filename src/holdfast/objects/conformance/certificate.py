"""The certificate of a store, and the quick check of a store at the start of a service.

A certificate records that ``holdfast doctor --certify`` ran every law on this store and saw no violation: which laws,
with what effort, when, by which version. It says where it was issued (address and endpoint, never a secret), because a
copied bucket brings the object along: only a certificate that ``covers`` the store's address counts.

``start_check`` is what a service does when it starts: eight requests under a throwaway key show that the store refuses
a second create and a stale if-match, and find the certificate. It raises ``Refused`` on a store that ignores
conditions. It does not test races: ``holdfast doctor`` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.errors import Ambiguous, Corrupt, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.client import START_CHECK_PREFIX, Client
from holdfast.objects.conformance.laws import Effort, Finding
from holdfast.objects.place import Place, described
from holdfast.objects.store import CREATE, IfMatch, Lost, Store, Written

CERTIFICATE_KEY = "meta/certificate.json"
FORMAT_NAME = "holdfast.certificate"
NEWEST = 1

LEAST = Effort()
"""What a certificate stands for at least: the effort of an ordinary examination."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class LawRecord(_Record):
    """One law as it was found."""

    name: str
    verdict: str
    figure: str


class Certificate(_Record):
    """No violation was found on ``store`` at ``certified_at``, with this much effort."""

    store: str
    endpoint: str | None = None
    """None for the provider's own servers."""
    account: str | None = None
    certified_at: str
    holdfast_version: str
    races: int
    rounds: int
    keys: int
    large_bytes: int
    laws: tuple[LawRecord, ...]

    def covers(self, place: Place) -> bool:
        """Whether it was issued for this very place; a copy or a move needs a certificate of its own.

        Certificates of older versions omit an endpoint that came from the environment, and the account. They cover
        AWS and Google only: an unnamed endpoint could be any server, and a new examination settles it.
        """
        return (self.store, self.endpoint or "", self.account or "") == (place.uri, place.endpoint, place.account)

    def __str__(self) -> str:
        return described(self.store, self.endpoint or "", self.account or "")


def certify(
    place: Place, findings: Sequence[Finding], effort: Effort, *, holdfast_version: str, ambient: Ambient
) -> Certificate:
    """The certificate that the findings allow; ``Refused`` unless every law was kept, with effort enough."""
    if (missing := too_little(effort)) is not None:
        raise Refused(
            f"{place}: no certificate for too little effort: {missing}",
            remedy="run holdfast doctor --certify as it is",
        )
    doubts = [f"{finding.law.name} is {finding.verdict}" for finding in findings if not finding.kept]
    doubts += [f"{finding.law.name} saw only {finding.confidence}" for finding in weak(findings)]
    if doubts or not findings:
        raise Refused(
            f"{place}: no certificate: {', '.join(doubts) or 'no law was run'}",
            remedy="run holdfast doctor and read its table",
        )
    return Certificate(
        store=place.uri,
        endpoint=place.endpoint or None,
        account=place.account or None,
        certified_at=iso(ambient.clock.wall_ns()),
        holdfast_version=holdfast_version,
        races=effort.races,
        rounds=effort.rounds,
        keys=effort.keys,
        large_bytes=effort.large_bytes,
        laws=tuple(LawRecord(name=each.law.name, verdict=each.verdict, figure=each.figure) for each in findings),
    )


def weak(findings: Sequence[Finding]) -> list[Finding]:
    """Laws that were kept, but in too few writes that overlapped in time: no evidence for a certificate."""
    return [each for each in findings if each.kept and each.confidence is not None and not each.confidence.enough]


def too_little(effort: Effort) -> str | None:
    """The options in which this effort is too little for a certificate; None if there are none."""
    short = [
        f"--{name} {getattr(effort, name):,}"
        for name in ("races", "rounds", "keys")
        if getattr(effort, name) < getattr(LEAST, name)
    ]
    return ", ".join(short) if short else None


async def write_certificate(store: Store, certificate: Certificate, ambient: Ambient) -> None:
    """Put it where services look; the newest examination replaces the one before."""
    document = codec.stamp(
        certificate.model_dump(mode="json"),
        format_name=FORMAT_NAME,
        version=NEWEST,
        write_id=ambient.ids.write_id(),
    )
    await store.put(CERTIFICATE_KEY, codec.encode(document))


async def read_certificate(store: Store) -> Certificate | None:
    """The certificate in the store, or None. It may have come along with a copy: ask it whether it ``covers`` you."""
    found = await store.find(CERTIFICATE_KEY)
    if found is None:
        return None
    document = codec.decode(found.body, key=CERTIFICATE_KEY)
    codec.expect(document, format_name=FORMAT_NAME, newest=NEWEST, key=CERTIFICATE_KEY)
    try:
        return Certificate.model_validate(document)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise Corrupt(
            f"{CERTIFICATE_KEY}: {place}: {problem['msg']}", remedy="run holdfast doctor --certify to replace it"
        ) from error


@dataclass(frozen=True, slots=True)
class StartCheck:
    """Result of a passed start check, with the certificate found."""

    place: Place
    certificate: Certificate | None
    """The certificate issued for this store; None if there is none, or only one that came along with a copy."""
    foreign: Certificate | None = None
    """A certificate that was issued for another place."""

    @property
    def advice(self) -> str | None:
        """What to tell the operator; None when there is nothing to say."""
        if self.certificate is not None:
            return None
        found = f"its certificate was issued for {self.foreign}" if self.foreign else "it has no certificate"
        return f"{self.place} has not been examined ({found}): run holdfast doctor --certify"


async def start_check(store: Client) -> StartCheck:
    """Four PUTs, three GETs and a DELETE. ``Refused`` when the store does not keep conditions."""
    key = f"{START_CHECK_PREFIX}{store.ambient.ids.unique()}"
    try:
        evidence = await _seen_of_conditions(store, key)
    except Ambiguous as error:
        evidence = str(error)  # a condition that holds was refused; were the store away, the delete would say so
    finally:
        await store.delete(key)
    if evidence is not None:
        raise Refused(
            f"{store.spec.uri}: the store does not keep conditions: {evidence}",
            remedy=f"run holdfast doctor {store.spec.uri} and use another store",
        )
    certificate = await read_certificate(store)
    if certificate is not None and not certificate.covers(store.place):
        return StartCheck(store.place, None, foreign=certificate)
    return StartCheck(store.place, certificate)


async def _seen_of_conditions(store: Client, key: str) -> str | None:
    """What the store did wrong; None when it refused a second create and a stale if-match and kept the bytes.

    A refused write is read back by `Client`, so ``Lost`` brings the bytes that stand there.
    """
    bodies = [f"start check {turn} {store.ambient.ids.write_id()}".encode() for turn in range(4)]
    first = await store.put(key, bodies[0], CREATE)
    if not isinstance(first, Written):
        return "a create of a new key was refused"
    second = await store.put(key, bodies[1], CREATE)
    if not _refused_over(second, bodies[0]):
        return "a second create of one key was not refused"
    third = await store.put(key, bodies[2], IfMatch(first.version))
    if not isinstance(third, Written):
        return "an if-match on the current version was refused"
    fourth = await store.put(key, bodies[3], IfMatch(first.version))
    if not _refused_over(fourth, bodies[2]):
        return "an if-match on a stale version was not refused"
    return None


def _refused_over(outcome: Written | Lost, standing: bytes) -> bool:
    return isinstance(outcome, Lost) and outcome.current is not None and outcome.current.body == standing
