"""A program is called as its kernel is: operands by name, outputs returned."""

import pytest
import torch
from golden.cases import GEMM
from simulate.test_golden_programs import drawn, shrunk

import tilegen as tg
from tilegen.compile import prim_func
from tilegen.errors import OperandError, SimulationError
from tilegen.simulate import Checks, run_into, run_program, simulate

PROGRAM = tg.build(
    tg.Gemm(m=tg.dyn("m", multiple_of=4), n=40, k=48, dtype="float16") | tg.Bias(),
    target="sm_90a",
    schedule="default",
)


def operands(m=12):
    generator = torch.Generator().manual_seed(m)
    shapes = {"a": (m, 48), "b": (48, 40), "bias": (40,)}
    return {name: torch.randn(shape, generator=generator).half() for name, shape in shapes.items()}


def product(a, b, bias):
    return (a.float() @ b.float() + bias.float()).half()


def test_one_output_is_a_tensor():
    given = operands()
    out = run_program(PROGRAM, given)
    torch.testing.assert_close(out, product(**given), atol=1e-2, rtol=1e-3)


def test_several_outputs_are_a_named_tuple():
    program = shrunk(GEMM["gated_tn"], 130, 136, 72)
    result = run_program(program, drawn(program.spec))
    assert result._fields == ("out", "pre")
    assert result.pre.dtype == torch.float32


def strided(tensor):
    wide = torch.zeros(tensor.shape[0], tensor.shape[1] + 8, dtype=tensor.dtype)
    view = wide[:, : tensor.shape[1]]
    return view.copy_(tensor)


CHANGES = {
    "strided": strided,
    "shifted": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
    "transposed": lambda t: t.T.contiguous().T,
    "odd rows": lambda t: torch.cat([t, t[:, :1]], 1)[:, :-1],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["a", "b"])
def test_operands_need_not_be_dense(name, change):
    given = operands()
    expected = run_program(PROGRAM, given)
    changed = change(given[name])
    assert torch.equal(changed, given[name])
    assert torch.equal(run_program(PROGRAM, {**given, name: changed}), expected)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("a", lambda t: t.float(), "must be torch.float16"),
        ("a", lambda t: t[:3], "multiple of 4"),
        ("bias", lambda t: t[:3], "shape"),
        ("bias", lambda t: 1.0, "not a torch.Tensor"),
        ("b", lambda t: t.to("meta"), "must be the CPU"),
    ],
)
def test_operands_that_do_not_fit_are_named(name, change, said):
    given = operands()
    with pytest.raises(OperandError, match=said) as raised:
        run_program(PROGRAM, {**given, name: change(given[name])})
    assert raised.value.operand == name


def test_missing_and_unknown_operands_are_named():
    given = operands()
    with pytest.raises(OperandError, match="is missing"):
        run_program(PROGRAM, {"a": given["a"], "b": given["b"]})
    with pytest.raises(OperandError, match="is unknown"):
        run_program(PROGRAM, {**given, "gate": given["bias"]})


def test_other_levels_and_values_are_refused():
    with pytest.raises(SimulationError, match="level='sm_90a': is not served"):
        run_program(PROGRAM, operands(), level="sm_90a")
    with pytest.raises(SimulationError, match="is no PrimFunc"):
        simulate(len)


def test_a_report_reads_well():
    given = operands()
    tensors = [*given.values(), torch.empty(12, 40).half()]
    report = simulate(prim_func(PROGRAM), *tensors, outputs=["out"], checks=Checks(), seed=3)
    assert report.ok
    assert report.counters["blocks"] >= 1
    assert report.counters["launches"] == 1
    assert report.to_json()["seed"] == 3
    assert dict(report.rows())["kernel"] == f"{PROGRAM.name} at level tile, seed 3"
    assert str(report).startswith("kernel: ")


def strided_room():
    room = torch.full((12, 48), 7.0).half()
    return room, room[:, 4:44]


def transposed_room():
    room = torch.full((48, 12), 7.0).half()
    return room, room[4:44].T


@pytest.mark.parametrize("make", [strided_room, transposed_room])
def test_outputs_are_written_in_place_and_nothing_beside_them(make):
    given = operands()
    room, out = make()
    beside = room.clone()
    assert run_into(PROGRAM, given, {"out": out}).ok
    assert torch.equal(out, run_program(PROGRAM, given))
    out.fill_(7.0)
    assert torch.equal(room, beside)
