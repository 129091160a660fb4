"""``holdfast tokens``: the file of tokens that collectors accept. It has their hashes; a token is shown only once."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.clock import parse_iso
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.cli import options
from holdfast.cli.shell import Shell, noun_app
from holdfast.server.tokens import add_token, read_tokens, revoke_token

app = noun_app()

File = Annotated[
    Path | None, typer.Option("--file", metavar="PATH", help="The token file (default: the setting ingest.tokens).")
]


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
    expires_in: Annotated[int | None, options.span("--expires-in", "It expires after this time, such as 90d.")] = None,
) -> None:
    """Make a token and print it. It is shown only once.

    To rotate a token add a second one for the same agents, hand it out, and revoke the first. Collectors notice within
    a second or two, without a restart.
    """
    patterns = tuple(pattern.strip() for each in agents for pattern in each.split(",") if pattern.strip())
    token, secret = add_token(_file(shell, file), patterns, Ambient.system(), note=note, lifetime_ns=expires_in)
    shell.out.note(f"token {token.token_id} for {', '.join(token.agents)}; it is not shown again")
    shell.out.line(secret, document={"id": token.token_id, "token": secret, "agents": token.agents})


@app.command("list")
def list_tokens(shell: Shell, file: File = None) -> None:
    """List tokens by their ids. The tokens themselves are not stored."""
    now_ns = Ambient.system().clock.wall_ns()
    shell.out.table(
        {
            "id": token.token_id,
            "agents": token.agents,
            "state": "expired" if token.expires_at is not None and parse_iso(token.expires_at) <= now_ns else "valid",
            "created": token.created_at,
            "expires": token.expires_at,
            "note": token.note,
        }
        for token in read_tokens(_file(shell, file))
    )


@app.command()
def revoke(
    shell: Shell,
    token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID", help="The token's id, as `list` shows it.")],
    file: File = None,
) -> None:
    """Remove a token. Collectors refuse it within a second or two."""
    gone = revoke_token(_file(shell, file), token_id)
    shell.out.record({"revoked": gone.token_id, "agents": gone.agents})


def _file(shell: Shell, given: Path | None) -> Path:
    path = given if given is not None else shell.settings.ingest.tokens
    if path is None:
        raise Invalid("no token file is named", remedy="give --file PATH, or set ingest.tokens")
    return path
