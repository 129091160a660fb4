"""Addresses in messages: people put secrets where they do not belong, and messages end up in logs.

An AWS secret may hold slashes, so user information does not end at the first one: all before the last ``@`` is hidden.
"""


def shown(address: str) -> str:
    """An address or URI without options, user information, and whatever follows a host where a port belongs."""
    bare = address.partition("?")[0]
    scheme, slashes, rest = bare.partition("://")
    if not slashes:
        scheme, slashes, rest = "", "", bare
    hidden, at, rest = rest.rpartition("@")
    host, slash, path = rest.partition("/")
    name, colon, port = host.partition(":")
    if slashes and colon and not port.isdigit():
        host = f"{name}:***"
    return f"{scheme}{slashes}{'***' if hidden else ''}{at}{host}{slash}{path}"
