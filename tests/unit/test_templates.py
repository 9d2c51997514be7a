"""Templates: blocks, comments and whitespace keep to the conventions, and mistakes are errors."""

import re

import jinja2
import jinja2.meta
import pytest

import tilegen as tg
from tilegen.errors import RenderError
from tilegen.families import FAMILIES
from tilegen.render import environment, literal, render, tl_dtype

ENVIRONMENT = environment()
NAMES = sorted(ENVIRONMENT.list_templates())
SOURCES = {name: ENVIRONMENT.loader.get_source(ENVIRONMENT, name)[0] for name in NAMES}
SKELETON = "kernel.py.j2"
MAINLOOPS = sorted({name for family in FAMILIES.values() for name in family.templates.values()})
# What several mainloops of a family share: a skeleton of their own, which fills the first.
SHARED = [f"{family}.py.j2" for family in FAMILIES if f"{family}.py.j2" in NAMES]
MACROS = [name for name in NAMES if name.startswith("macros/")]
each_template = pytest.mark.parametrize("name", NAMES)


def test_every_template_is_the_skeleton_a_mainloop_or_macros():
    assert set(NAMES) == {SKELETON, *SHARED, *MAINLOOPS, *MACROS}
    assert set(MAINLOOPS) <= set(NAMES)


@pytest.mark.parametrize("name", MAINLOOPS)
def test_a_mainloop_fills_blocks_of_the_skeleton(name):
    """jinja2 drops a block that the parent lacks, without a word."""
    skeleton, child = ENVIRONMENT.get_template(SKELETON), ENVIRONMENT.get_template(name)
    assert set(child.blocks) <= set(skeleton.blocks)


@pytest.mark.parametrize("name", [*SHARED, *MAINLOOPS])
def test_a_template_extends_the_skeleton_or_its_family_s(name):
    (parent,) = re.findall(r'{% extends "(.*)" %}', SOURCES[name])
    shared = f"{name.split('/')[0]}.py.j2"
    assert parent == (shared if shared in SHARED and shared != name else SKELETON)
    assert parent != SKELETON or "super()" not in SOURCES[name]


@pytest.mark.parametrize("name", [SKELETON, *MACROS])
def test_others_extend_nothing(name):
    assert "{% extends" not in SOURCES[name]


@pytest.mark.parametrize("name", MACROS)
def test_macro_files_hold_only_macros(name):
    module = ENVIRONMENT.get_template(name).module
    assert str(module).strip() == ""
    for imported in re.findall(r'{% import "(.*)" as', SOURCES[name]):
        assert imported in MACROS
        assert "{% import" not in SOURCES[imported]


@each_template
def test_each_opens_with_a_head_comment(name):
    comment = re.match(r"{#(.*?)#}\n", SOURCES[name], re.DOTALL)
    assert comment
    assert len(comment[1].split()) >= 5


@each_template
def test_whitespace_is_not_controlled_by_hand(name):
    """Only the tag that ends a macro, or a branch inside one, may eat the space before it."""
    assert "-%}" not in SOURCES[name]
    assert "-}}" not in SOURCES[name]
    assert "{{-" not in SOURCES[name]
    tags = re.findall(r"{%-\s*(\w+)", SOURCES[name])
    assert set(tags) <= {"endmacro", "else", "endif"}
    if name not in MACROS:
        assert not tags


@each_template
def test_control_tags_of_blocks_stand_alone(name):
    for line in SOURCES[name].splitlines():
        if re.search(r"{%-? *(end)?(block|for|macro|extends|import)\b", line):
            inline = re.fullmatch(r".*{% for .*{% endfor %}.*", line)
            empty = re.fullmatch(r"\s*{% block \w+ (required )?%}{% endblock %}", line)
            alone = re.fullmatch(r"\s*{%-? [^%]* %}", line)
            assert inline or empty or alone, line


@each_template
def test_sizes_are_within_the_caps(name):
    assert len(SOURCES[name].splitlines()) <= 250
    for macro in re.findall(r"{% macro.*?endmacro %}", SOURCES[name], re.DOTALL):
        assert len(macro.splitlines()) <= 25


@each_template
def test_templates_read_only_what_they_are_given(name):
    tree = ENVIRONMENT.parse(SOURCES[name])
    imported = set(re.findall(r"{% import \".*\" as (\w+) %}", SOURCES[name]))
    undeclared = jinja2.meta.find_undeclared_variables(tree) - imported
    assert undeclared <= {"program", "spec", "schedule", "target", "geometry"}
    if name in MACROS:
        assert not undeclared


def test_filters_are_few_and_used():
    own = set(ENVIRONMENT.filters) - set(jinja2.Environment().filters)
    text = "\n".join(SOURCES.values())
    for name in own:
        assert re.search(rf"\|\s*{name}\b", text), f"the filter {name} is not used"


def test_no_template_is_made_from_text():
    assert ENVIRONMENT.undefined is jinja2.StrictUndefined
    assert not ENVIRONMENT.autoescape


# --- literals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"), [(3, "3"), (0.5, "0.5"), (True, "True"), ("row", '"row"'), (-1, "-1")]
)
def test_literals_are_python(value, text):
    assert literal(value) == text


@pytest.mark.parametrize("value", [None, [1], (1,), {}, tg.Relu(), 1j, b"x"], ids=repr)
def test_what_is_no_literal_is_an_error(value):
    with pytest.raises(RenderError, match="is no literal"):
        literal(value)


@pytest.mark.parametrize(("name", "text"), [("float16", '"float16"'), ("tfloat32", "T.tfloat32")])
def test_dtypes_as_tilelang_spells_them(name, text):
    assert tl_dtype(name) == text


def test_a_failing_template_is_named(monkeypatch):
    program = tg.build(tg.Gemm(m=64, n=64, k=64, dtype="float16"), target="sm_80")
    monkeypatch.setattr(type(program.geometry), "title", property(lambda self: self.missing))
    with pytest.raises(RenderError, match=r"gemm/pipelined.py.j2.* failed"):
        render(program)


@pytest.mark.parametrize("variant", ["pipelined", "warp_specialized"])
@pytest.mark.parametrize(("n", "by_tma"), [(1, False), (33, False), (40, True)])
def test_strided_rows_leave_by_tma_if_it_writes_nothing_beside_them(variant, n, by_tma):
    """A TMA store writes whole units of 16 bytes (H28)."""
    spec = tg.Gemm(m=20, n=n, k=64, dtype="float16", layout="nt")
    built = tg.build(spec, target="sm_90a", schedule=tg.GemmSchedule(variant=variant))
    source = built.with_access({"out": "strided"}).source
    (store,) = (line for line in source.splitlines() if "out_shared, out[" in line)
    assert ("disable_tma=True" not in store) == by_tma
