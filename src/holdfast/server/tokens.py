"""Tokens of agents: a file of hashes, read again whenever it changes.

    [[token]]
    id = "3f9a01c2"
    agents = ["web-*"]
    sha256 = "..."                              # of the whole token
    created_at = "2026-01-01T00:00:00.000000+00:00"
    expires_at = "..."                          # optional
    note = "..."

A token is ``hft_{id}_{secret}`` with 256 random bits, shown once and not stored: it cannot be guessed, so a plain hash
is enough. The id finds the row; the hash is compared in constant time. Several tokens may be for one agent: to rotate
them, add one, distribute it, and revoke the other.

Errors: ``NotFound`` and ``Invalid`` for a file that cannot be used. If the file becomes unusable while a collector
runs, the collector keeps its tokens and reports the problem.
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
from typing import Annotated, Any

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from holdfast.base.aio import blocking
from holdfast.base.clock import Clock, iso, parse_iso
from holdfast.base.drafts import PRIVATE, Stamp, replacing, stamp
from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.base.record import Timestamp
from holdfast.base.telemetry import logger
from holdfast.telemetry.identity import fits

_TOKEN = re.compile(r"hft_([0-9a-f]{8})_[0-9a-f]{64}")
_HEADER = (
    "# Tokens of agents, by their hashes. `holdfast tokens` writes it; collectors read it again when it changes.\n"
)
_NO_TOKEN = hashlib.sha256(b"").hexdigest()

_log = logger("server.tokens")


@dataclass(frozen=True, slots=True)
class Token:
    token_id: Annotated[str, Field(alias="id")]
    agents: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    """Patterns of agent ids: ``*`` and ``?`` match any characters."""
    sha256: Annotated[str, StringConstraints(to_lower=True, pattern="^[0-9a-fA-F]{64}$")]
    created_at: str
    expires_at: Timestamp | None = None
    note: str = ""

    def allows(self, agent_id: str) -> bool:
        return any(fits(agent_id, pattern) for pattern in self.agents)

    def expired(self, now_ns: int) -> bool:
        return self.expires_at is not None and parse_iso(self.expires_at) <= now_ns


_ROW = TypeAdapter(Token)


class Table:
    """The tokens of one reading of the file."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self.tokens = tokens
        self._by_id = {token.token_id: token for token in tokens}

    def find(self, secret: str, now_ns: int) -> Token | None:
        """The token with the hash of this text. Takes as long for a wrong one as for a right one."""
        shape = _TOKEN.fullmatch(secret)
        token = self._by_id.get(shape[1]) if shape is not None else None
        expected = _NO_TOKEN if token is None else token.sha256
        same = hmac.compare_digest(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest(), expected)
        return token if token is not None and same and not token.expired(now_ns) else None


class TokenFile:
    """The file, and the table that was last read from it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.table = Table(())
        self.problem: str | None = None
        """Why the current file cannot be used; the table is then that of an earlier reading."""
        self._clock = clock
        self._seen: Stamp = None

    def authenticate(self, secret: str) -> Token | None:
        return self.table.find(secret, self._clock.wall_ns())

    def valid(self) -> int:
        """Number of tokens that have not expired."""
        now = self._clock.wall_ns()
        return sum(not token.expired(now) for token in self.table.tokens)

    async def load(self) -> None:
        """Read the file at the start, when a problem is an error."""
        self._seen = await blocking(stamp, self.path)
        self.table = Table(await blocking(read_tokens, self.path))

    async def refresh(self) -> bool:
        """Read the file again if it has changed. Returns whether there is a new table; never raises."""
        found = await blocking(stamp, self.path)
        if found == self._seen:
            self.problem = None  # the file that was read last is in place again
            return False
        try:
            table = Table(await blocking(read_tokens, self.path))
        except (Invalid, NotFound) as error:
            if str(error) != self.problem:
                _log.error("tokens stay as they were: %s", error)
            self.problem = str(error)
            return False
        self._seen, self.table, self.problem = found, table, None
        _log.info("tokens were read again: %d", len(table.tokens))
        return True


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
        token = _ROW.validate_python(row)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise Invalid(
            f"token file {path}: a token cannot be used: {where}: {problem['msg']}",
            remedy="remove it, or replace it by a new token",
        ) from None
    return token


def add_token(
    path: Path,
    agents: tuple[str, ...],
    ambient: Ambient | None = None,
    *,
    note: str = "",
    lifetime_ns: int | None = None,
) -> tuple[Token, str]:
    """The new row, and the token itself, which is not stored. Creates the file if there is none."""
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
        revoked = next((token for token in tokens if token.token_id == token_id), None)
        if revoked is None:
            raise NotFound(f"token file {path}: there is no token {token_id}", remedy="see `holdfast tokens list`")
        _write(path, tuple(token for token in tokens if token is not revoked))
    return revoked


@contextmanager
def _editing(path: Path) -> Iterator[None]:
    """One editor at a time. The lock is on the directory, because the file itself is replaced.

    A link is refused: in a directory that others can write to it may lead anywhere.
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
    """Replace the file whole: a collector reads the old one or the new one."""
    with replacing(path, PRIVATE) as draft, draft.open("w", encoding="utf-8") as out:
        _copy_owner(path, out.fileno())
        out.write(_HEADER + "".join(map(_row, tokens)))
        out.flush()
        os.fsync(out.fileno())


def _copy_owner(path: Path, new: int) -> None:
    """Keep owner, group and mode: the collector may run as another user."""
    try:
        before = path.stat()
    except FileNotFoundError:
        return
    with suppress(PermissionError):  # only root may change the owner
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
