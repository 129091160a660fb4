"""Tokens of agents: a file of hashes, read again whenever it changes.

    [[token]]
    id = "3f9a01c2"
    agents = ["web-*"]
    sha256 = "..."                              # of the whole token
    created_at = "2026-01-01T00:00:00.000000+00:00"
    expires_at = "..."                          # if it ends by itself
    note = "..."

A token is ``hft_{id}_{secret}`` with 256 random bits, shown once and kept nowhere: so a plain hash is enough, there is
nothing to guess. The id finds the row; the hash is compared in constant time. Several tokens may be for one agent,
which is how they are rotated: add, hand out, revoke.

Errors: ``NotFound`` and ``Invalid`` for a file that cannot be used. A file that turns bad while a collector runs leaves
the tokens as they were, and is reported.
"""

import fcntl
import hashlib
import hmac
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.base.aio import blocking
from holdfast.base.clock import Clock, iso, parse_iso
from holdfast.base.drafts import create
from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.telemetry.identity import fits

_TOKEN = re.compile(r"hft_([0-9a-f]{8})_[0-9a-f]{64}")
_HEADER = (
    "# Tokens of agents, by their hashes. `holdfast tokens` writes it; collectors read it again when it changes.\n"
)
_NOBODY = hashlib.sha256(b"").hexdigest()

_log = logger("server.tokens")


@dataclass(frozen=True, slots=True)
class Token:
    token_id: str
    agents: tuple[str, ...]
    """Patterns of agent ids: ``*`` and ``?`` stand for any characters."""
    sha256: str
    created_at: str
    expires_at: str | None = None
    note: str = ""

    def allows(self, agent_id: str) -> bool:
        return any(fits(agent_id, pattern) for pattern in self.agents)

    def expired(self, now_ns: int) -> bool:
        return self.expires_at is not None and parse_iso(self.expires_at) <= now_ns


class Table:
    """The tokens of one reading of the file."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self.tokens = tokens
        self._by_id = {token.token_id: token for token in tokens}

    def find(self, secret: str, now_ns: int) -> Token | None:
        """The token whose hash this text has. Takes as long for a wrong one as for a right one."""
        shape = _TOKEN.fullmatch(secret)
        token = self._by_id.get(shape[1]) if shape is not None else None
        expected = _NOBODY if token is None else token.sha256
        same = hmac.compare_digest(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest(), expected)
        return token if token is not None and same and not token.expired(now_ns) else None


class TokenFile:
    """The file, and the table that was last read from it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.table = Table(())
        self.problem: str | None = None
        """Why the file as it is now cannot be used; the table is then that of an earlier reading."""
        self._clock = clock
        self._seen: tuple[int, ...] | None = None

    def authenticate(self, secret: str) -> Token | None:
        return self.table.find(secret, self._clock.wall_ns())

    def valid(self) -> int:
        """Number of tokens that have not expired."""
        now = self._clock.wall_ns()
        return sum(not token.expired(now) for token in self.table.tokens)

    async def load(self) -> None:
        """Read it for the first time: a file that cannot be used is an error."""
        self._seen = await blocking(_stamp, self.path)
        self.table = Table(await blocking(read_tokens, self.path))

    async def refresh(self) -> bool:
        """Read it again if it has changed. Never raises; says whether there is a new table."""
        stamp = await blocking(_stamp, self.path)
        if stamp == self._seen:
            self.problem = None  # it was away, or bad, and is again what was read last
            return False
        try:
            table = Table(await blocking(read_tokens, self.path))
        except (Invalid, NotFound) as error:
            if str(error) != self.problem:
                _log.error("tokens stay as they were: %s", error)
            self.problem = str(error)
            return False
        self._seen, self.table, self.problem = stamp, table, None
        _log.info("tokens were read again: %d", len(table.tokens))
        return True


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_tokens(path: Path) -> tuple[Token, ...]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(
            f"token file {path} does not exist", remedy=f"holdfast tokens add --file {path} --agents 'web-*'"
        ) from None
    except OSError as error:
        raise Invalid(
            f"token file {path} cannot be read: {error.strerror}",
            remedy="name a file that this user may read: --tokens PATH",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(
            f"token file {path} is not TOML: {error}", remedy="restore it, or remove it and add tokens"
        ) from error
    rows = tree.get("token", [])
    if not isinstance(rows, list) or set(tree) - {"token"}:
        raise Invalid(f"token file {path}: only [[token]] tables are known", remedy="remove the rest")
    tokens = tuple(_token(path, row) for row in rows)
    if len({token.token_id for token in tokens}) != len(tokens):
        raise Invalid(f"token file {path}: two tokens have one id", remedy="remove one of them")
    return tokens


def _token(path: Path, row: Any) -> Token:
    try:
        agents = row["agents"]
        token = Token(
            str(row["id"]),
            tuple(agents),
            str(row["sha256"]).lower(),
            str(row["created_at"]),
            row.get("expires_at"),
            str(row.get("note", "")),
        )
        token.expired(0)
        right = isinstance(agents, list) and all(isinstance(each, str) and each for each in agents)
        if not right or not re.fullmatch(r"[0-9a-f]{64}", token.sha256):
            raise ValueError("agents are a list of patterns, sha256 has 64 hexadecimal digits")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Invalid(
            f"token file {path}: a token cannot be used: {error}", remedy="remove it, or add it anew"
        ) from error
    return token


def add_token(
    path: Path,
    agents: tuple[str, ...],
    ambient: Ambient | None = None,
    *,
    note: str = "",
    lifetime_ns: int | None = None,
) -> tuple[Token, str]:
    """The new row, and the token itself, which is not kept. Creates the file if there is none."""
    if not agents or not all(agents):
        raise Invalid("a token is for the agents of at least one pattern", remedy="give --agents, such as 'web-*'")
    for pattern in agents:
        if any(character.isspace() for character in pattern):
            raise Invalid(f"the pattern {pattern!r} has white space in it", remedy="separate patterns by commas")
    ambient = ambient if ambient is not None else Ambient.system()
    with _editing(path):
        tokens = read_tokens(path) if path.exists() else ()
        token_id = ambient.ids.attempt()
        while any(token.token_id == token_id for token in tokens):
            token_id = ambient.ids.attempt()
        secret = f"hft_{token_id}_{ambient.ids.unique()}{ambient.ids.unique()}"
        now = ambient.clock.wall_ns()
        token = Token(token_id, agents, hashlib.sha256(secret.encode()).hexdigest(), iso(now), note=note)
        if lifetime_ns is not None:
            token = replace(token, expires_at=iso(now + lifetime_ns))
        _write(path, (*tokens, token))
    return token, secret


def revoke_token(path: Path, token_id: str) -> Token:
    with _editing(path):
        tokens = read_tokens(path)
        gone = next((token for token in tokens if token.token_id == token_id), None)
        if gone is None:
            raise NotFound(f"token file {path}: there is no token {token_id}", remedy="see `holdfast tokens list`")
        _write(path, tuple(token for token in tokens if token is not gone))
    return gone


@contextmanager
def _editing(path: Path) -> Iterator[None]:
    """One editor at a time. The lock is on the folder, since the file itself is replaced.

    A link is refused: in a folder that others can write to it may lead anywhere.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotFound(f"folder {path.parent} cannot be opened: {error.strerror}", remedy="create it first") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.is_symlink():
            raise Refused(f"token file {path} is a link to {path.readlink()}", remedy="name the file itself")
        yield
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(path: Path, tokens: tuple[Token, ...]) -> None:
    """Replace the file whole: a collector reads the old one or the new one, with the rights that it had."""
    new = path.with_name(f".{path.name}.new")
    with os.fdopen(create(new), "w", encoding="utf-8") as out:
        _like(path, out.fileno())
        out.write(_HEADER + "".join(map(_row, tokens)))
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


def _like(path: Path, new: int) -> None:
    """Keep owner, group and mode: the collector may run as another user."""
    try:
        before = path.stat()
    except FileNotFoundError:
        return
    with suppress(PermissionError):  # only root gives files away, and then the collector's own user does not edit
        os.fchown(new, before.st_uid, before.st_gid)
    os.fchmod(new, stat.S_IMODE(before.st_mode))


def _row(token: Token) -> str:
    fields: dict[str, Any] = {
        "id": token.token_id,
        "agents": list(token.agents),
        "sha256": token.sha256,
        "created_at": token.created_at,
        **({"expires_at": token.expires_at} if token.expires_at else {}),
        **({"note": token.note} if token.note else {}),
    }
    # Strings and lists of strings are written alike in JSON and in TOML.
    return "\n[[token]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
