"""Where keys go, name by name. That the mapping is one to one is a property, tested with the properties."""

import pytest

from holdfast.objects.local.names import CONTROL, MOVING, SELF, component_names, key_names, names_component

LONG = "x" * 256


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("runs/a.json", (b"runs", b"a.json")),
        ("100%", (b"100%25",)),
        ("%self", (b"%25self",)),
        (".%holdfast/locks", (b".%25holdfast", b"locks")),
        ("Grüße", ("Grüße".encode(),)),
        ("x" * 255, (b"x" * 255,)),
        (LONG, (b"x" * 254 + b"%", b"xx")),
        (f"a/{LONG}/b", (b"a", b"x" * 254 + b"%", b"xx", b"b")),
        ("é" * 128, ("é".encode() * 127 + b"%", "é".encode())),  # 127 letters fill 254 bytes; none is split
        ("%" * 100, (b"%25" * 84 + b"%", b"%25" * 16)),  # neither is an escape
    ],
)
def test_key_becomes_names(key: str, names: tuple[bytes, ...]) -> None:
    assert key_names(key, fold=False) == names


@pytest.mark.parametrize(
    ("component", "name"),
    [
        ("plain-1_a=b.json", b"plain-1_a=b.json"),
        ("Upper", b"%55pper"),
        ("é", b"%c3%a9"),
        ("dot.", b"dot%2e"),
        ("a:b c", b"a%3ab%20c"),
    ],
)
def test_where_names_are_folded_only_plain_characters_stand_for_themselves(component: str, name: bytes) -> None:
    assert component_names(component, fold=True) == (name,)
    assert names_component((name,), fold=True) == component


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize(
    "names",
    [
        (CONTROL,),
        (SELF,),
        (MOVING,),
        (b"50%",),
        (b"%2F",),
        (b"a%2fb",),
        (b"\xff",),
        (b"a\nb",),
        (b"short%", b"tail"),
        (b"x" * 254 + b"%", b"x" * 254 + b"%"),
    ],
)
def test_a_name_that_no_key_has_stands_for_nothing(names: tuple[bytes, ...], fold: bool) -> None:
    assert names_component(names, fold=fold) is None
