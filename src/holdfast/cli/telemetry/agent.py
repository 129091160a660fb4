"""``holdfast agent``: measure this host, read its logs, and bring both to collectors.

It runs until SIGTERM or Ctrl-C, which let it send what is queued for a while; the exit code is then 0. With ``--once``
it measures once and exits 0 only if everything in the queue was accepted. What people should know goes to standard
error, a line each.
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.clock import iso
from holdfast.base.config import AgentSection
from holdfast.base.errors import Invalid, Unavailable
from holdfast.base.ids import Ambient
from holdfast.cli import options
from holdfast.cli.output import Output, counted
from holdfast.cli.shell import Shell, noun_app, stop_on_signals

app = noun_app(no_args_is_help=False)
parked_app = noun_app()
app.add_typer(parked_app, name="parked", help="List, show and drop batches that no collector accepts.")

Queue = Annotated[Path, typer.Option("--queue", metavar="DIR", help="The agent's folder.")]
Numbers = Annotated[str, typer.Argument(metavar="START-END", help="The batch's sequence numbers, such as 120-140.")]


@app.callback(invoke_without_command=True)
def agent(
    context: typer.Context,
    collector: Annotated[
        str | None, typer.Option(metavar="URL[,URL...]", help="URLs of collectors; if one fails the next is used.")
    ] = None,
    agent_id: Annotated[str | None, typer.Option(metavar="NAME", help="The id under which this host sends.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The file that holds this agent's token.")
    ] = None,
    queue: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A directory of the agent's own, where batches wait.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Measure once, send, and exit.")] = False,
    unsafe_plain_http: Annotated[
        bool, typer.Option("--unsafe-plain-http", help="Allow http:// collectors on other machines.")
    ] = False,
) -> None:
    """Measure this host and send it to collectors, losing nothing.

    Intervals, log files and alert rules come from the settings, in the table [agent].
    """
    if context.invoked_subcommand is not None:
        return
    shell = Shell.of(context)
    missing = [
        name
        for name, value in {
            "--collector": collector,
            "--agent-id": agent_id,
            "--token-file": token_file,
            "--queue": queue,
        }.items()
        if value is None
    ]
    if collector is None or agent_id is None or token_file is None or queue is None:
        raise Invalid(f"an agent needs {', '.join(missing)}", remedy="see holdfast agent --help")
    from holdfast.telemetry.agent.transport import TokenSource  # noqa: PLC0415  # slow to import, and of no use to `parked`

    unsafe = unsafe_plain_http or shell.settings.agent.unsafe_plain_http
    urls = collectors_of(collector, unsafe_plain_http=unsafe)
    token = TokenSource(token_file)
    shell.run(_work(shell, urls, agent_id, token, queue, once=once, unsafe_plain_http=unsafe))


async def _work(
    shell: Shell,
    urls: tuple[str, ...],
    agent_id: str,
    token: Callable[[], str],
    folder: Path,
    *,
    once: bool,
    unsafe_plain_http: bool,
) -> None:
    import httpx  # noqa: PLC0415  # slow to import, and of no use to `parked`

    from holdfast.telemetry.agent.agent import Agent  # noqa: PLC0415  # as above
    from holdfast.telemetry.agent.queue import open_queue  # noqa: PLC0415  # as above
    from holdfast.telemetry.agent.transport import HttpTransport, http_client, trusting  # noqa: PLC0415  # as above

    section, ambient = shell.settings.agent, Ambient.system()
    verify = True if section.ca_file is None else trusting(section.ca_file, "agent.ca_file")
    stop = asyncio.Event()
    stop_on_signals(stop)
    spoken = _Spoken(shell.out)
    async with open_queue(folder, agent_id, ambient, max_bytes=section.queue_max_bytes) as queued:
        timeout = httpx.Timeout(section.request_timeout_ms / 1000, connect=min(10.0, section.request_timeout_ms / 1000))
        async with http_client(
            timeout=timeout, verify=verify, limits=httpx.Limits(), environment_proxies=True
        ) as client:
            transport = HttpTransport(client, urls, token, unsafe_plain_http=unsafe_plain_http)
            worker = Agent(queued, transport, ambient, section, folder, collectors=urls, notify=spoken)
            if not once:
                _announce(shell.out, agent_id, queued.boot_id, folder, queued.waiting_records, section)
            done = await (worker.once() if once else worker.run(stop))
        waiting = queued.waiting_records
        if once:
            _report_once(shell.out, worker, waiting)
            if not done:
                raise Unavailable(
                    f"{waiting_text(waiting)} in {folder}: {spoken.last or 'no collector took them in time'}",
                    remedy=f"{_advice(worker, section.ca_file)}; nothing is lost",
                )
        elif waiting:
            shell.out.note(f"{waiting_text(waiting)} in {folder} for the next start")


def waiting_text(records: int) -> str:
    return f"{counted(records, 'record')} {'waits' if records == 1 else 'wait'}"


def _advice(worker: Any, ca_file: Path | None) -> str:
    match worker.denied:
        case None:
            return "check the URL of the collector, and start the agent again"
        case "identity_quarantined":
            return "ask those who run the collectors why this agent is held; start it again once it is not"
        case "untrusted" if ca_file is not None:
            return f"{ca_file} does not contain the issuer of this certificate: change agent.ca_file, and start again"
        case "untrusted":
            return "name the file of its CA in agent.ca_file (HOLDFAST_AGENT__CA_FILE), and start the agent again"
        case "wrong_name":
            return "give the collector's URL with a name that is in its certificate, and start the agent again"
        case "wrong_address":
            return "give the address of the collector's --listen, not that of --private, and start the agent again"
        case _:
            return (
                "compare --token-file and --agent-id with `holdfast tokens list` where the collectors are, "
                "and start the agent again"
            )


class _Spoken:
    def __init__(self, out: Output) -> None:
        self._out = out
        self.last = ""

    def __call__(self, text: str) -> None:
        self.last = text
        self._out.note(text)


def collectors_of(text: str, *, unsafe_plain_http: bool = False) -> tuple[str, ...]:
    from holdfast.telemetry.agent.transport import check_url  # noqa: PLC0415  # as above

    given = (url.strip() for url in text.split(","))
    urls = tuple(check_url(url, "--collector: ", unsafe_plain_http=unsafe_plain_http) for url in given if url)
    if not urls:
        raise Invalid("--collector names no collector", remedy="write https://host:port")
    return urls


def _announce(out: Output, agent_id: str, boot_id: str, folder: Path, waiting: int, section: AgentSection) -> None:
    if out.as_json:
        out.document({"agent_id": agent_id, "boot_id": boot_id, "queue": str(folder), "waiting_records": waiting})
        return
    every = f"{section.interval_ms / 1000:g} s"
    out.line(f"{agent_id} (boot {boot_id}) measures every {every}; {waiting_text(waiting)} in {folder}")


def _report_once(out: Output, worker: Any, waiting: int) -> None:
    shipped = worker.shipper.shipped
    fields = {
        "accepted_batches": shipped.batches,
        "duplicates": shipped.duplicates,
        "parked": shipped.parked,
        "waiting_records": waiting,
    }
    out.line(
        f"{counted(shipped.batches, 'batch', 'batches')} accepted, {counted(shipped.duplicates, 'duplicate')}, "
        f"{shipped.parked:,} parked, {waiting_text(waiting)}",
        document=fields,
    )


@parked_app.command("list")
async def list_parked(shell: Shell, queue: Queue) -> None:
    """List parked batches and why they are parked."""

    from holdfast.telemetry.agent.queue import open_parked  # noqa: PLC0415  # see above

    async with open_parked(queue) as batches:
        results = [
            {
                "numbers": _numbers(each),
                "reason": each.reason,
                "parked": iso(each.parked_at_unix_ns),
                "bytes": each.frame_bytes,
                "detail": each.detail,
            }
            for each in await batches.all()
        ]
    shell.out.table(results, empty="no batch is parked")


@parked_app.command("show")
async def show_parked(shell: Shell, numbers: Numbers, queue: Queue) -> None:
    """Show one parked batch: its identity, hash, reason and records."""

    from holdfast.telemetry.agent.queue import open_parked  # noqa: PLC0415  # see above
    from holdfast.telemetry.frame import decode  # noqa: PLC0415  # see above

    async with open_parked(queue) as batches:
        found = await batches.find(numbers)
        frame = await batches.frame(found)
    batch = decode(frame)
    shell.out.record(
        {
            "agent_id": found.identity.agent_id,
            "boot_id": found.identity.boot_id,
            "seq_start": found.identity.seq_start,
            "seq_end": found.identity.seq_end,
            "reason": found.reason,
            "detail": found.detail,
            "parked": iso(found.parked_at_unix_ns),
            "frame_sha256": hashlib.sha256(frame).hexdigest(),
            "frame_bytes": len(frame),
            "samples": len(batch.samples),
            "histograms": len(batch.histograms),
            "logs": len(batch.logs),
            "alerts": len(batch.alerts),
        }
    )


@parked_app.command("drop")
async def drop_parked(
    shell: Shell,
    numbers: Numbers,
    queue: Queue,
    yes: options.Yes = False,
) -> None:
    """Delete one parked batch for good. It was not accepted, so its records are lost."""

    from holdfast.telemetry.agent.queue import open_parked  # noqa: PLC0415  # see above

    async with open_parked(queue) as batches:
        found = await batches.find(numbers)
        if not yes:
            shell.confirm(f"Delete batch {found.identity} ({found.reason}) for good?", "--yes")
        await batches.remove(found)
    shell.out.line(f"dropped {_numbers(found)}", document={"dropped": _numbers(found)})


def _numbers(parked: Any) -> str:
    return f"{parked.identity.seq_start}-{parked.identity.seq_end}"
