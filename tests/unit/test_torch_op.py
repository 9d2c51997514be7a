"""A kernel as a torch operator, with a computation on the CPU in place of the kernel."""

import itertools

import pytest
import torch
from stand_ins import honest

import tilegen as tg
from tilegen.errors import OperandError, SpecError
from tilegen.operands import shape_of, torch_dtype
from tilegen.reference import inputs
from tilegen.torch_op import define, register

M = tg.dyn("m", multiple_of=2)
LINEAR = tg.Gemm(m=M, n=24, k=16, dtype="float16", layout="nt") | tg.Bias() | tg.Gelu()
STORED = tg.Gemm(m=M, n=24, k=16, dtype="float16") | tg.Store("pre", "float32") | tg.Relu()
STATIC = tg.Gemm(m=6, n=24, k=16, dtype="bfloat16") | tg.Bias("m")
SPECS = {"linear": LINEAR, "stored": STORED, "static": STATIC}
NUMBERS = itertools.count()


def operands(spec, m=6):
    made = inputs(spec, {"m": m}, torch.Generator().manual_seed(m))
    return tuple(made.values())


def computed(spec):
    """Return what computes a spec on the CPU, called as its kernel is."""
    names = [operand.name for operand in spec.operands]

    def call(*tensors):
        given = dict(zip(names, tensors, strict=True))
        sizes = {"m": given["a"].shape[0]}
        made = {
            o.name: torch.empty(shape_of(o, sizes), dtype=torch_dtype(o.dtype))
            for o in spec.outputs
        }
        honest(spec)(given, made)
        values = tuple(made.values())
        return values[0] if len(values) == 1 else values

    return call


def fresh():
    return f"tilegen_tests::op_{next(NUMBERS)}"


def made(spec):
    return define(fresh(), spec, computed(spec), "cpu")


@pytest.fixture(params=SPECS.values(), ids=SPECS, scope="module")
def spec(request):
    return request.param


def same(result, expected):
    results = (result,) if isinstance(result, torch.Tensor) else result
    values = (expected,) if isinstance(expected, torch.Tensor) else expected
    assert len(results) == len(values)
    for value, wanted in zip(results, values, strict=True):
        assert value.dtype == wanted.dtype
        assert torch.equal(value, wanted)


def test_it_computes_what_it_stands_for(spec):
    op = made(spec)
    given = operands(spec)
    same(op(*given), computed(spec)(*given))
    names = [operand.name for operand in spec.operands]
    same(op(**dict(zip(names, given, strict=True))), computed(spec)(*given))


def test_opcheck_passes(spec):
    torch.library.opcheck(made(spec), operands(spec))


@pytest.mark.parametrize("m", [0, 2, 6])
def test_outputs_without_values_have_the_shapes_of_the_spec(spec, m):
    if not spec.dynamic:
        m = 6
    result = made(spec)(*(tensor.to("meta") for tensor in operands(spec, m)))
    results = (result,) if isinstance(result, torch.Tensor) else result
    for value, output in zip(results, spec.outputs, strict=True):
        assert value.shape == shape_of(output, {"m": m})
        assert value.dtype == torch_dtype(output.dtype)
        assert value.is_contiguous()


class Model(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, *tensors):
        result = self.op(*(tensor * 1 for tensor in tensors))
        first = result if isinstance(result, torch.Tensor) else result[0]
        return first * 2


def test_it_is_exported(spec):
    op = made(spec)
    given = operands(spec)
    shapes = None
    if spec.dynamic:
        half = torch.export.Dim("half", min=1, max=512)
        shapes = {"tensors": tuple({0: 2 * half} if n == 0 else None for n in range(len(given)))}
    program = torch.export.export(Model(op), given, dynamic_shapes=shapes)
    assert op._qualname.replace("::", ".") in str(program.graph)
    more = operands(spec, 10) if spec.dynamic else given
    same(program.module()(*more), Model(op)(*more))


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_is_compiled_whole(spec, dynamic):
    model = Model(made(spec))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for m in (6, 10) if spec.dynamic else (6,):
        same(compiled(*operands(spec, m)), model(*operands(spec, m)))


BAD = {
    "another size": (lambda t: t[:, :-1], "axis 1 must be 16"),
    "another multiple": (lambda t: t[:-1], "a multiple of 2"),
    "another type": (lambda t: t.float(), "must be torch.float16"),
    "another rank": (lambda t: t[0], "has 1 axes, must have 2"),
}


@pytest.mark.parametrize(("change", "said"), BAD.values(), ids=BAD)
def test_operands_that_do_not_fit_are_refused_while_tracing(change, said):
    a, *rest = (tensor.to("meta") for tensor in operands(LINEAR))
    with pytest.raises(OperandError, match=said) as raised:
        made(LINEAR)(change(a), *rest)
    assert raised.value.operand == "a"


def test_a_gradient_is_refused_at_the_call():
    op = made(LINEAR)
    a, *rest = operands(LINEAR)
    with pytest.raises(OperandError, match=r"has no backward; call it under torch\.no_grad"):
        op(a.requires_grad_(), *rest)
    with torch.no_grad():
        assert not op(a, *rest).requires_grad


def test_a_name_is_registered_once():
    name = fresh()
    define(name, LINEAR, computed(LINEAR), "cpu")
    with pytest.raises(SpecError, match=f"name='{name}': is the name of a torch operator already"):
        define(name, LINEAR, computed(LINEAR), "cpu")
    with pytest.raises(SpecError, match=r"already; call torch\.ops\.aten\.relu"):
        define("aten::relu", LINEAR, computed(LINEAR), "cpu")


@pytest.mark.parametrize("name", ["relu", "mylib.relu", "mylib::", "my-lib::relu", "a::b::c", ""])
def test_other_names_are_refused(name):
    with pytest.raises(SpecError, match="is no name of a torch operator"):
        define(name, LINEAR, computed(LINEAR), "cpu")


class StandIn:
    """What registering takes from a kernel."""

    program = tg.build(LINEAR, target="sm_90a")

    def __call__(self, *tensors):
        raise AssertionError("is for CUDA tensors")


def test_a_registered_kernel_serves_cuda_tensors_alone():
    name = fresh()
    op = register(StandIn(), name)
    space, last = name.split("::")
    assert getattr(getattr(torch.ops, space), last).default is op._opoverload
    assert op(*(tensor.to("meta") for tensor in operands(LINEAR))).shape == (6, 24)
    with pytest.raises(NotImplementedError, match="CPU"):
        op(*operands(LINEAR))
