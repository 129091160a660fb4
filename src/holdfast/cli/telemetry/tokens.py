"""``holdfast tokens``: the file by which collectors know agents. A token is shown once; the file has its hash."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.clock import parse_iso, parse_span
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.cli.shell import Shell, noun_app
from holdfast.server.tokens import add_token, read_tokens, revoke_token

app = noun_app()

File = Annotated[
    Path | None, typer.Option("--file", metavar="PATH", help="The token file (default: the setting ingest.tokens).")
]


@app.callback()
def tokens() -> None:
    """Add, list and revoke the tokens by which agents send to collectors."""


@app.command()
def add(
    shell: Shell,
    agents: Annotated[
        list[str],
        typer.Option(
            "--agents", metavar="PATTERNS", help="Agent ids that may use it, such as 'web-*,db-1'; repeatable."
        ),
    ],
    file: File = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="A note for people, such as who holds it.")] = "",
    expires_in: Annotated[
        str | None, typer.Option(metavar="SPAN", help="It expires after this time, such as 90d.")
    ] = None,
) -> None:
    """Make a token and print it. It is shown only once.

    To rotate a token add a second one for the same agents, hand it out, and revoke the first. Collectors notice within
    a second or two, without a restart.
    """
    lifetime_ns = None if expires_in is None else parse_span(expires_in)
    patterns = tuple(pattern.strip() for each in agents for pattern in each.split(",") if pattern.strip())
    token, secret = add_token(_file(shell, file), patterns, Ambient.system(), note=note, lifetime_ns=lifetime_ns)
    if shell.out.as_json:
        shell.out.document({"id": token.token_id, "token": secret, "agents": token.agents})
        return
    shell.out.note(f"token {token.token_id} for {', '.join(token.agents)}; it is not shown again")
    shell.out.line(secret)


@app.command("list")
def list_tokens(shell: Shell, file: File = None) -> None:
    """List tokens by their ids. The tokens themselves are not stored."""
    now_ns = Ambient.system().clock.wall_ns()
    rows = [
        (
            token.token_id,
            list(token.agents) if shell.out.as_json else ", ".join(token.agents),
            "expired" if token.expires_at is not None and parse_iso(token.expires_at) <= now_ns else "valid",
            token.created_at,
            token.expires_at,
            token.note,
        )
        for token in read_tokens(_file(shell, file))
    ]
    shell.out.table(("id", "agents", "state", "created", "expires", "note"), rows)


@app.command()
def revoke(
    shell: Shell,
    token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID", help="The token's id, as `list` shows it.")],
    file: File = None,
) -> None:
    """Remove a token. Collectors refuse it within a second or two."""
    gone = revoke_token(_file(shell, file), token_id)
    agents = list(gone.agents) if shell.out.as_json else ", ".join(gone.agents)
    shell.out.record({"revoked": gone.token_id, "agents": agents})


def _file(shell: Shell, given: Path | None) -> Path:
    path = given if given is not None else shell.settings.ingest.tokens
    if path is None:
        raise Invalid("no token file is named", remedy="give --file PATH, or set ingest.tokens")
    return path
