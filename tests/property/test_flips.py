"""Flip any field: the emitted program changes, or both were equal, or it is refused by name."""

import ast

import attrs
import pytest
from attrs import evolve
from hypothesis import Phase, assume, find, given, settings
from hypothesis import strategies as st

import tilegen as tg
from tilegen.dims import Dyn
from tilegen.epilogue import OPS
from tilegen.errors import RefusedError
from tilegen.expr import Expr
from tilegen.families import FAMILIES
from tilegen.row_statistics import ROW_STATISTICS
from tilegen.specs.captured import Function as Captured
from tilegen.specs.masks import Both, Either, Not
from tilegen.specs.reads import Function
from tilegen.strategies import (
    accesses,
    chains,
    dyns,
    epilogue_ops,
    gemm_specs,
    legal_programs,
    sample,
    schedules,
    specs,
)
from tilegen.strategies_attention import attention_specs, leaf_masks, masks, score_ops
from tilegen.strategies_decode import decode_specs
from tilegen.strategies_elementwise import elementwise_specs, functions, parts, reads
from tilegen.strategies_mla import mla_specs
from tilegen.strategies_row_statistics import row_statistics
from tilegen.strategies_rowwise import quantize_rows, rowwise_specs
from tilegen.targets import TARGETS, Target

LEAVES = (tg.Causal, tg.Window, tg.PrefixLm, tg.DocumentMask, tg.MaskTensor, tg.MaskMod)
JOINED = (Both, Either, Not)
ATTENTION = (tg.Attention, tg.AttentionSchedule, *LEAVES, *JOINED)
ATTENTION += (tg.Alibi, tg.ScoreBias, tg.ScoreMod)

# What a program is made of, and a strategy that varies every field of it.
DONORS = {
    tg.Dyn: dyns(),
    tg.Rasterization: st.builds(
        tg.Rasterization, st.integers(1, 16), st.sampled_from(("row", "column"))
    ),
    **{op: epilogue_ops(op) for op in OPS.values()},
    **{op: row_statistics(op) for op in ROW_STATISTICS.values()},
    tg.Input: reads().filter(lambda read: isinstance(read, tg.Input)),
    tg.Part: parts(),
    Function: functions(),
    **{kind: leaf_masks(kind) for kind in LEAVES},
    Not: leaf_masks().map(Not),
    **{kind: masks().filter(lambda mask, kind=kind: type(mask) is kind) for kind in JOINED[:2]},
    **{kind: score_ops(kind) for kind in (tg.Alibi, tg.ScoreBias, tg.ScoreMod)},
    tg.QuantizeRow: quantize_rows(),
    **{
        kind: rowwise_specs(kinds=(kind,)) if name == "rowwise" else specs(name)
        for name, family in FAMILIES.items()
        for kind in family.specs
    },
    **{
        family.part("schedule"): schedules(name, complete=True) for name, family in FAMILIES.items()
    },
}
FIELDS = [(kind, field.name) for kind in DONORS for field in attrs.fields(kind)]
IDS = [f"{kind.__name__}.{name}" for kind, name in FIELDS]
SEARCH = settings(max_examples=200, database=None, phases=[Phase.generate], deadline=None)
FILLED = st.sampled_from((64, 127, 128, 512))
SIZES = FILLED | st.just(0)
NARROW = st.sampled_from((64, 127, 128))
# Fields whose flip alone is always refused or normalised, and why.
NEVER_CHANGE = {
    (tg.Gemm, "compute"): "one value for each dtype: tf32 for float32, else None",
    (tg.Reduce, "axis"): "rows and columns have mainloops, and chains, of their own",
    (tg.RowwiseSchedule, "variant"): "each mainloop has block_cols and splits of its own",
}


def test_every_class_of_a_program_has_a_donor():
    drawn = [
        schedule for name in FAMILIES for schedule in sample(schedules(name, complete=True), 9)
    ]
    drawn += sample(specs(), 60 * len(FAMILIES))
    assert {type(node) for part in drawn for _, node in nodes(part)} == set(DONORS)


def nodes(value, path=()):
    """Yield (path, node) of the attrs values that a program is made of, functions left whole."""
    if isinstance(value, tuple):
        for place, item in enumerate(value):
            yield from nodes(item, (*path, place))
    elif attrs.has(type(value)) and not isinstance(value, (Expr, Target, Captured)):
        yield path, value
        for field in attrs.fields(type(value)):
            yield from nodes(getattr(value, field.name), (*path, field.name))


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=IDS)
def test_strategies_vary_every_field(kind, name):
    two = st.tuples(DONORS[kind], DONORS[kind])
    find(two, lambda pair: getattr(pair[0], name) != getattr(pair[1], name), settings=SEARCH)


def launched(spec):
    """Return whether a kernel is launched: not for an empty output, whatever the fields are."""
    return all(0 not in output.shape for output in spec.outputs)


ROWWISE = (*FAMILIES["rowwise"].specs, tg.RowwiseSchedule)
ELEMENTWISE = (tg.Elementwise, tg.ElementwiseSchedule, tg.Input, tg.Part, Function)


def programs_with(kind):
    """Return a strategy of legal programs that hold a value of the class ``kind``."""
    if kind in ELEMENTWISE:
        return legal_programs(spec=elementwise_specs(epilogue=chains(0, 2)).filter(launched))
    if kind in ATTENTION:
        # Without queries nothing is launched, and without keys there are no scores.
        lengths = st.sampled_from((1, 64, 65, 200))
        specs = attention_specs(seq=lengths, batch=st.integers(1, 2) | st.just(tg.dyn("batch")))
        if kind in (*LEAVES, *JOINED):
            # A map of blocks is refused for masks that follow from sizes.
            specs = st.builds(evolve, specs, mask=DONORS[kind], block_map=st.none())
        return legal_programs(spec=specs)
    if kind in (tg.Decode, tg.DecodeSchedule):
        return legal_programs(spec=decode_specs().filter(launched))
    if kind in (tg.MlaDecode, tg.MlaSchedule):
        return legal_programs(spec=mla_specs().filter(launched))
    if kind is tg.QuantizeRow:
        specs = rowwise_specs(kinds=(tg.RmsNorm, tg.Softmax), epilogue=chains(0, 1))
        specs = specs.filter(lambda spec: spec.quantize is not None)
        return legal_programs(spec=specs.filter(launched))
    if kind in ROWWISE:
        specs = rowwise_specs(kinds=(kind,), epilogue=chains(0, 2))
        if kind is tg.RowwiseSchedule:
            specs = rowwise_specs(cols=st.sampled_from((1000, 4096, 20000)))
        return legal_programs(spec=specs.filter(launched))
    epilogue = chains(0, 2)
    if kind in OPS.values():
        epilogue = chains(1, 1, ops=epilogue_ops(kind)).map(lambda chain: (*chain, tg.Relu()))
    if kind in ROW_STATISTICS.values():
        rows = chains(1, 1, ops=row_statistics(kind))
        epilogue = st.builds(lambda before, op: (*before, *op), chains(0, 1), rows)
        specs = gemm_specs(m=FILLED | dyns(), n=NARROW, k=SIZES, epilogue=epilogue)
        return legal_programs(spec=specs)
    m, n = SIZES | dyns(), SIZES
    if kind is tg.Dyn:  # a hint is the size that main() checks, where there is output to check
        m, n = dyns(), FILLED
    programs = legal_programs(spec=gemm_specs(m=m, n=n, k=SIZES, epilogue=epilogue))
    if kind is tg.Rasterization:
        orders = DONORS[kind]
        return st.builds(
            lambda program, order: replaced(program, ("schedule", "rasterization"), order),
            programs,
            orders,
        )
    return programs


def replaced(value, path, new):
    """Return ``value`` with the node at ``path`` replaced by ``new``, built anew on the way up."""
    if not path:
        return new
    first, *rest = path
    if isinstance(first, int):
        return tuple(replaced(v, rest, new) if i == first else v for i, v in enumerate(value))
    return changed(value, first, replaced(getattr(value, first), rest, new))


def changed(node, name, value):
    """Return ``node`` with another value of the field ``name``, which may be made by an alias."""
    return evolve(node, **{getattr(attrs.fields(type(node)), name).alias: value})


def without_hint(value):
    """Return a dimension with one hint for all, which only schedules follow."""
    return evolve(value, hint=value.multiple_of) if isinstance(value, Dyn) else value


def code(program):
    """Return the emitted file without docstrings and comments."""
    tree = ast.parse(program.source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def flipped(program, path, node, name, other):
    """Return the program with one field changed, or the RefusedError that says it may not be.

    A changed spec for which the schedule is not legal any more gets its default one.
    """
    try:
        flipped = changed(node, name, other)
        try:
            return replaced(program, path, flipped)
        except tg.LegalityError:
            if path[0] != "spec":
                raise
            program = tg.build(program.spec, target=program.target).with_access(program.access)
            return replaced(program, path, flipped)
    except RefusedError as error:
        return error


def check(before, after):
    if isinstance(after, RefusedError):
        assert after.rule
        assert after.field
        assert after.field in str(after)
        return "refused"
    if after == before:
        assert after.source == before.source
        assert after.digest == before.digest
        return "normalised"
    assert code(after) != code(before), f"{before}\nand\n{after}\nemit the same code"
    assert after.digest != before.digest
    return "changed"


@st.composite
def flips(draw, kind, name):
    """Draw a program, and what it becomes with another value of one field."""
    program = draw(programs_with(kind))
    places = [(path, node) for path, node in nodes(program) if type(node) is kind]
    if not places:  # the canonical form dropped it
        return program, program
    path, node = draw(st.sampled_from(places))
    values = DONORS[kind].map(lambda donor: getattr(donor, name))
    now = without_hint(getattr(node, name))
    other = draw(values.filter(lambda value: without_hint(value) != now))
    return program, flipped(program, path, node, name, other)


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=IDS)
def test_a_flipped_field_is_seen(kind, name):
    @settings(max_examples=max(6, settings().max_examples // 6))
    @given(flips(kind, name))
    def flip(pair):
        check(*pair)

    flip()


CHANGING = [field for field in FIELDS if field not in NEVER_CHANGE]


@pytest.mark.parametrize(
    ("kind", "name"), CHANGING, ids=[f"{kind.__name__}.{name}" for kind, name in CHANGING]
)
def test_some_flip_of_a_field_changes_the_code(kind, name):
    find(flips(kind, name), lambda pair: check(*pair) == "changed", settings=SEARCH)


@pytest.mark.parametrize(("kind", "name"), NEVER_CHANGE)
def test_fields_that_follow_from_others_say_so(kind, name):
    assert "changed" not in {check(*pair) for pair in sample(flips(kind, name), 20)}


@given(legal_programs(spec=gemm_specs(m=FILLED, n=FILLED)), st.sampled_from(sorted(TARGETS)))
def test_a_flipped_target_is_seen(program, target):
    try:
        after = evolve(program, target=target)
    except RefusedError as error:
        after = error
    check(program, after)


@given(legal_programs(), st.data())
def test_a_flipped_access_is_seen(program, data):
    assume(launched(program.spec))
    access = data.draw(accesses(program))
    # Strided rows may be read by elements, as unaligned ones are.
    assume(set(access) != set(dict(program.access)) or access == dict(program.access))
    try:
        after = evolve(program, access=access)
    except RefusedError as error:
        after = error
    check(program, after)


@given(legal_programs(spec=gemm_specs(epilogue=chains(2, 4))), st.data())
def test_another_order_of_the_chain_is_seen(program, data):
    spec = program.spec
    order = data.draw(st.permutations(range(len(spec.epilogue))))
    chain = tuple(spec.epilogue[place] for place in order)
    check(program, evolve(program, spec=evolve(spec, epilogue=chain)))
