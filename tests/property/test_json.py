"""Loading JSON: documents that were tampered with load to a sound value or are refused."""

import json

from hypothesis import given
from hypothesis import strategies as st

import tilegen as tg
from tilegen.errors import TilegenError
from tilegen.strategies import programs, schedules, specs

VALUES = programs() | specs() | schedules("gemm")
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(("m", "float16", "nn", "inf", "-inf", "add", "var", "x", "__import__", "")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("op", "name", "kind", "value", "fn")), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(node, path=()):
    """Yield the path of every node of a document."""
    yield path
    items = {dict: lambda: node.items(), list: lambda: enumerate(node)}.get(type(node), tuple)
    for key, value in items():
        yield from places(value, (*path, key))


def tampered(document, path, change):
    """Return the document with the node at ``path`` replaced, dropped or renamed."""
    if not path:
        return change(document)
    *outer, last = path
    copy = json.loads(json.dumps(document))
    holder = copy
    for key in outer:
        holder = holder[key]
    holder[last] = change(holder[last])
    return copy


@given(VALUES, st.data())
def test_a_replaced_node_is_refused_or_sound(value, data):
    document = json.loads(tg.dumps(value))
    path = data.draw(st.sampled_from(list(places(document))))
    other = data.draw(PLAIN)
    load_or_refuse(tampered(document, path, lambda _: other))


@given(VALUES, st.data())
def test_an_added_or_dropped_key_is_refused_or_sound(value, data):
    document = json.loads(tg.dumps(value))
    holders = [path for path in places(document) if isinstance(at(document, path), dict)]
    path = data.draw(st.sampled_from(holders))
    load_or_refuse(tampered(document, path, lambda node: {**node, "extra": 1}), strict=bool(path))
    key = data.draw(st.sampled_from(sorted(at(document, path)) or ["none"]))
    load_or_refuse(
        tampered(document, path, lambda node: {k: v for k, v in node.items() if k != key})
    )


def at(document, path):
    for key in path:
        document = document[key]
    return document


def load_or_refuse(document, strict=False):
    try:
        loaded = tg.loads(json.dumps(document))
    except TilegenError as error:
        assert str(error)  # noqa: PT017
        return
    assert not strict, f"{document} has a key that means nothing, and loaded"
    assert tg.loads(tg.dumps(loaded)) == loaded
    hash(loaded)


@given(st.text() | PLAIN.map(json.dumps))
def test_any_other_text_is_refused(text):
    try:
        tg.loads(text)
    except tg.SpecError as error:
        assert error.rule == "json"  # noqa: PT017
    else:
        raise AssertionError(f"{text!r} was loaded")
