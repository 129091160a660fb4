"""Confirmation tokens: a preview of an irreversible operation gives a token, and the operation requires it. Pure."""

import hashlib

from holdfast.base.errors import Refused


def token_of(text: str) -> str:
    """From all that a preview depends on, so that the token is invalid once any of it has changed."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def check_token(given: str, expected: str, otherwise: str) -> None:
    """``Refused`` if it is not the current preview's; ``otherwise`` says what has changed."""
    if given != expected:
        raise Refused(
            f"the token does not fit: {otherwise}",
            remedy="look at the preview again, and use the token that it gives",
        )
