"""Tokens: who wants something done that cannot be undone shows that they saw what it would do. Pure."""

import hashlib

from holdfast.base.errors import Refused


def token_of(text: str) -> str:
    """Of all that a preview depends on: another state of things gives another token."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def check_token(given: str, expected: str, otherwise: str) -> None:
    """``Refused`` if it is not the preview's; ``otherwise`` says what would come of that."""
    if given != expected:
        raise Refused(
            f"the token does not fit: {otherwise}",
            remedy="look at the preview again, and use the token that it gives",
        )
