"""What is illegal is refused at construction, by rule id and with numbers; and never otherwise."""

import ast
import re

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

import tilegen as tg
from tilegen.errors import RefusedError
from tilegen.families import FAMILIES
from tilegen.schedules.fields import UNSET, set_fields
from tilegen.strategies import legal_programs, programs, sample, schedules, specs
from tilegen.targets import TARGETS

TARGET = st.sampled_from(sorted(TARGETS))
FULL = st.sampled_from(("sm_80", "sm_90a"))
FAMILY = sorted(FAMILIES)
CASES = 300


def rule_ids(family):
    return {rule.id for rule in FAMILIES[family].part("rules")}


def refused(make):
    """Return what ``make`` returns, and the RefusedError it raises; anything else gets through."""
    try:
        return make(), None
    except RefusedError as error:
        return None, error


@pytest.mark.parametrize("family", FAMILY)
@given(data=st.data())
def test_a_program_is_built_or_refused_by_a_rule(family, data):
    spec, target = data.draw(specs(family)), data.draw(TARGET)
    schedule = data.draw(schedules(family, complete=True))
    program, error = refused(lambda: tg.Program(spec=spec, schedule=schedule, target=target))
    if program is not None:
        assert program.source
        return
    assert isinstance(error, tg.LegalityError)
    assert error.rule in rule_ids(family)
    text = str(error)
    assert text.startswith(f"[{error.rule}] {error.field}={error.value!r}: ")
    owner = schedule if error.field in set_fields(schedule) else spec
    assert error.value == getattr(owner, error.field)
    assert re.search(r"\d", text), "a refusal says the numbers"
    assert text.endswith(error.hint)


@pytest.mark.parametrize("family", FAMILY)
@given(data=st.data())
def test_build_gives_a_program_or_a_refusal(family, data):
    spec, target = data.draw(specs(family)), data.draw(TARGET)
    schedule = data.draw(schedules(family))
    program, error = refused(lambda: tg.build(spec, target=target, schedule=schedule))
    if program is None:
        assert isinstance(error, tg.LegalityError)
        assert error.rule in rule_ids(family)
        return
    assert UNSET not in [getattr(program.schedule, a.name) for a in fields(type(schedule))]
    # Every set field is kept: setting it again on the chosen schedule changes nothing.
    assert evolve(program, schedule=evolve(program.schedule, **set_fields(schedule))) == program


@pytest.mark.parametrize("family", FAMILY)
def test_hints_of_refusals_are_legal(family):
    cases = st.tuples(specs(family), schedules(family, complete=True), FULL)
    tried = 0
    for spec, schedule, target in sample(cases, CASES):
        _, error = refused(
            lambda: tg.Program(spec=spec, schedule=schedule, target=target)  # noqa: B023
        )
        if error is None or not error.hint.startswith("try "):
            continue
        change = parsed(error.hint.removeprefix("try "))
        assert change.items() - set_fields(schedule).items() == change.items()
        tg.Program(spec=spec, schedule=evolve(schedule, **change), target=target)
        tried += 1
    assert tried > CASES // 10


def parsed(hint):
    """Return the fields of a hint such as ``block_k=64, policy='square'``."""
    call = ast.parse(f"change({hint})", mode="eval").body
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}


@given(programs(), st.data())
def test_one_changed_field_has_a_way_back(program, data):
    """One field away from a legal program, a refusal always says what to change."""
    name = data.draw(st.sampled_from([a.name for a in fields(type(program.schedule))]))
    donor = data.draw(schedules(program.family.name, complete=True))
    schedule = evolve(program.schedule, **{name: getattr(donor, name)})
    _, error = refused(lambda: evolve(program, schedule=schedule))
    if error is not None:
        assert error.hint.startswith("try ")


@given(legal_programs(), st.data())
def test_some_fields_of_a_legal_schedule_are_completed(program, data):
    """Fields that go together are never refused because of those that were left unset."""
    names = [a.name for a in fields(type(program.schedule))]
    kept = data.draw(st.sets(st.sampled_from(names)))
    partial = evolve(program.schedule, **{name: UNSET for name in names if name not in kept})
    if program.access:
        program = tg.build(program.spec, target=program.target)
        partial = type(program.schedule)()
    built = tg.build(program.spec, target=program.target, schedule=partial)
    assert evolve(built, schedule=evolve(built.schedule, **set_fields(partial))) == built


@given(programs(), st.data())
def test_any_access_of_any_operand_is_served(program, data):
    names = [operand.name for operand in program.params if operand.kind == "mainloop"]
    names += [operand.name for operand in program.spec.outputs]
    access = data.draw(
        st.dictionaries(st.sampled_from(names), st.sampled_from(("strided", "unaligned")))
    )
    assert dict(program.with_access(access).access) == access
