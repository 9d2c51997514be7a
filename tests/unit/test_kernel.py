import threading

import pytest
import torch
from stand_ins import CudaTensor, cuda, honest

import tilegen as tg
from tilegen.kernel import Kernel
from tilegen.operands import place, shape_of, signature, torch_dtype
from tilegen.overlap import disjoint, overlaps_itself
from tilegen.reference import reference
from tilegen.routes import passed

M, N, K = 24, 40, 48
BASE = tg.Gemm(m=M, n=N, k=K, dtype="bfloat16")
CHAIN = (tg.Bias(), tg.Residual(), tg.Store("pre"), tg.Scale(), tg.Bias("m", name="shift"))
FULL = tg.Gemm(m=M, n=N, k=K, dtype="bfloat16", epilogue=CHAIN)
DYNAMIC = tg.Gemm(m=tg.dyn("m"), n=N, k=K, dtype="bfloat16", layout="tn") | tg.Bias()


class Machine:
    """What the stand-in for a GPU saw: accesses compiled, tensors launched, device changes."""

    def __init__(self):
        self.accesses = []
        self.launches = []
        self.devices = []
        self.allocations = 0
        self.current = 0
        self.capabilities = {0: (9, 0), 1: (9, 0), 2: (8, 6)}

    def binary(self, program, force=False):
        self.accesses.append(program.access)
        params = program.params
        names = [param.name for param in params]

        def run(*tensors):
            sizes = signature(program.spec).sizes(tensors)
            for param, tensor in zip(params, tensors, strict=True):  # what TileLang checks
                fits = tensor.device == tensors[0].device and tensor.is_cuda
                fits = fits and tensor.dtype == torch_dtype(param.dtype)
                if not fits or tuple(tensor.shape) != shape_of(param, sizes):
                    raise RuntimeError(f"kernel {program.name} input {param.name} mismatch")
            given = dict(zip(names, tensors, strict=True))
            self.launches.append(given)
            self.devices.append(self.current)
            # As a kernel does, this writes without autograd's knowledge.
            plain = {name: tensor.as_subclass(torch.Tensor).data for name, tensor in given.items()}
            outputs = {output.name: plain[output.name] for output in program.spec.outputs}
            honest(program.spec)(plain, outputs)

        return run


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    empty = torch.empty

    def allocate(shape, strides=None, *, dtype, device=None):
        made.allocations += 1
        tensor = empty(shape, dtype=dtype)
        assert strides in (None, tensor.stride())
        return tensor if device is None or device.type == "cpu" else cuda(tensor, device.index)

    class Guard:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            self.before, made.current = made.current, self.index

        def __exit__(self, *error):
            made.current = self.before

    monkeypatch.setitem(Kernel.__init__.__globals__, "binary", made.binary)
    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch, "empty_strided", allocate)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: made.current)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: made.capabilities[device.index]
    )
    return made


def random(*shape, dtype=torch.bfloat16):
    """Return a random tensor whose address is a multiple of 16."""
    return cuda(torch.randn(shape).to(dtype))


def operands_of(spec, **sizes):
    shapes = {
        operand.name: [sizes.get(getattr(dim, "name", None), dim) for dim in operand.shape]
        for operand in spec.operands
    }
    return {
        operand.name: random(*shapes[operand.name], dtype=getattr(torch, operand.dtype.value))
        for operand in spec.operands
    }


def built(spec, target="sm_90a"):
    return Kernel(tg.build(spec, target=target))


def assert_right(spec, operands, out):
    plain = {name: tensor.as_subclass(torch.Tensor) for name, tensor in operands.items()}
    expected = reference(spec, **plain)
    expected = expected if len(spec.outputs) == 1 else expected.out
    torch.testing.assert_close(
        out.as_subclass(torch.Tensor).float(), expected, rtol=2**-7, atol=1e-2
    )


# --- calls ------------------------------------------------------------------------------------


def test_one_output_is_a_tensor_and_operands_go_by_position_or_name(machine):
    spec = BASE | tg.Bias()
    kernel = built(spec)
    operands = operands_of(spec)
    a, b, bias = operands.values()
    first = kernel(a, b, bias=bias)
    assert_right(spec, operands, first)
    assert (first.shape, first.dtype) == ((M, N), torch.bfloat16)
    for args, named in (((a, b, bias), {}), ((), operands), ((a,), {"bias": bias, "b": b})):
        assert torch.equal(kernel(*args, **named), first)
    assert machine.accesses == [()]
    assert list(machine.launches[0]) == ["a", "b", "bias", "out"]


def test_several_outputs_are_a_named_tuple(machine):
    kernel = built(FULL)
    operands = operands_of(FULL)
    found = kernel(**operands)
    assert found._fields == ("out", "pre")
    assert type(found).__name__ == "GemmNnBfloat16BiasResidualStoreScaleBias"
    assert type(kernel(**operands)) is type(found)
    assert_right(FULL, operands, found.out)


def test_outputs_may_be_given(machine):
    kernel = built(FULL)
    operands = operands_of(FULL)
    expected = kernel(**operands)
    out, pre = random(M, N), random(M, N)
    for given in (out, {"out": out}, {"out": out, "pre": pre}, {"pre": pre}):
        for _ in range(2):  # the first call of a kind is routed, the second is not
            out.zero_()
            pre.zero_()
            found = kernel(**operands, out=given)
            assert torch.equal(found.out, expected.out)
            assert torch.equal(found.pre, expected.pre)
            assert (found.out is out) == (given is out or "out" in given)
    version = out._version
    kernel(**operands, out=out)
    assert out._version > version


def test_source_and_repr_are_the_program_s(machine):
    kernel = built(BASE)
    assert kernel.source == kernel.program.source
    assert repr(kernel) == f"Kernel({kernel.program!r})"


BIAS = BASE | tg.Bias()
BAD_CALLS = {
    "missing": (lambda o: o.pop("bias"), r"operand 'bias': is missing; pass bias= \(40,\) bf"),
    "unknown": (lambda o: o.update(c=o["b"]), "'c': is unknown; the kernel takes a, b, bias"),
    "none": (lambda o: o.update(bias=None), "'bias': is a builtins.NoneType, not a torch.Tensor"),
    "sparse": (lambda o: o.update(b=sparse(o["b"])), "'b': layout=torch.sparse_coo: must be"),
    "cpu": (lambda o: o.update(b=torch.ones(K, N)), r"device=cpu: must be a CUDA .* b.cuda\(\)"),
    "device": (
        lambda o: o.update(b=cuda(o["b"].clone(), 1)),
        r"'b': device=cuda:1: must be cuda:0, where a is; use b.to\('cuda:0'\)",
    ),
    "dtype": (
        lambda o: o.update(bias=random(N, dtype=torch.float32)),
        r"'bias': dtype=torch.float32: must be torch.bfloat16; use bias.to\(torch.bfloat16\)",
    ),
    "rank": (lambda o: o.update(bias=random(1, N)), r"'bias': shape=\(1, 40\): must be \(40,\)"),
    "shape": (lambda o: o.update(a=random(M, K + 1)), r"'a': shape=\(24, 49\): must be \(24, 48\)"),
    "transposed": (lambda o: o.update(b=random(N, K)), r"'b': shape=\(40, 48\): must be"),
    "out_shape": (lambda o: o.update(out=random(N, M)), r"'out': shape=\(40, 24\)"),
    "out_dtype": (lambda o: o.update(out=random(M, N, dtype=torch.float16)), "'out': dtype"),
    "out_name": (lambda o: o.update(out={"outt": 1}), "'outt': is not an output; .* writes out"),
    "out_kind": (lambda o: o.update(out=[1.0]), "'out': is a builtins.list, not a torch.Tensor"),
    "gradient": (
        lambda o: o["b"].requires_grad_(),
        r"'b': requires_grad=True: .* under torch.no_grad\(\), or pass b.detach\(\)",
    ),
}  # fmt: skip


def sparse(tensor):
    return tensor.as_subclass(torch.Tensor).to_sparse()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("change", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_name_the_operand(machine, change, message, warm):
    kernel = built(BIAS)
    operands = operands_of(BIAS)
    if warm:
        kernel(**operands)
    launches = len(machine.launches)
    change(operands)
    with pytest.raises(tg.OperandError, match=message):
        kernel(**operands)
    with pytest.raises(tg.OperandError, match=message):
        kernel.plan(**operands)
    assert len(machine.launches) == launches


def test_too_many_and_repeated_operands(machine):
    kernel = built(BIAS)
    a, b, bias = operands_of(BIAS).values()
    with pytest.raises(tg.OperandError, match="operand '#4': is one too many; the kernel takes"):
        kernel(a, b, bias, bias)
    with pytest.raises(tg.OperandError, match="'b': is given twice, by position and by name"):
        kernel(a, b, b=b)


def test_gradients_are_refused_in_grad_mode_only(machine):
    kernel = built(BIAS)
    operands = operands_of(BIAS)
    expected = kernel(**operands)
    operands["a"].requires_grad_()
    for _ in range(2):
        with torch.no_grad():
            assert torch.equal(kernel(**operands), expected)
        with pytest.raises(tg.OperandError, match="'a': requires_grad=True"):
            kernel(**operands)


# --- devices ----------------------------------------------------------------------------------


def test_the_tensors_device_is_current_at_launch(machine):
    kernel = built(BIAS)
    for index in (0, 1, 1):
        operands = {name: cuda(t.clone(), index) for name, t in operands_of(BIAS).items()}
        out = kernel(**operands)
        assert out.get_device() == index
    assert machine.devices == [0, 1, 1]
    assert machine.current == 0


@pytest.mark.parametrize(
    ("target", "capability", "fits"),
    [
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_80", (9, 0), False),
    ],
)
def test_the_architecture_must_fit_the_device(machine, target, capability, fits):
    machine.capabilities[0] = capability
    kernel = built(BASE, target)
    operands = operands_of(BASE)
    if fits:
        assert_right(BASE, operands, kernel(**operands))
        return
    name = "sm_{}{}".format(*capability)
    with pytest.raises(tg.OperandError, match=f"'a': device=cuda:0: is {name}, .* for {target};"):
        kernel(**operands)


def test_a_second_device_is_checked_too(machine):
    kernel = built(BASE)
    operands = operands_of(BASE)
    kernel(**operands)
    moved = {name: cuda(t.clone(), 2) for name, t in operands.items()}
    with pytest.raises(tg.OperandError, match="device=cuda:2: is sm_86"):
        kernel(**moved)


# --- sizes ------------------------------------------------------------------------------------


def test_a_dynamic_dimension_is_taken_from_the_first_operand_that_has_it(machine):
    kernel = built(DYNAMIC)
    for m in (8, 64, 8, 1):
        operands = operands_of(DYNAMIC, m=m)
        out = kernel(**operands)
        assert out.shape == (m, N)
        assert_right(DYNAMIC, operands, out)
    assert machine.accesses == [(), (("a", "unaligned"),)]  # the latter for rows of one element
    spec = DYNAMIC | tg.Residual()
    operands = operands_of(spec, m=8)
    operands["residual"] = random(9, N)
    with pytest.raises(tg.OperandError, match=r"'residual': .* must be \(m, 40\) with m=8"):
        built(spec)(**operands)


def test_multiples_and_limits_of_a_dynamic_dimension(machine):
    spec = tg.Gemm(m=tg.dyn("m", multiple_of=8), n=N, k=K, dtype="bfloat16")
    kernel = built(spec)
    with pytest.raises(tg.OperandError, match="'a': m=12: must be a multiple of 8"):
        kernel(**operands_of(spec, m=12))
    flat = cuda(torch.zeros(K, dtype=torch.bfloat16))
    a = flat.as_strided((2**31, K), (0, 1))
    with pytest.raises(tg.OperandError, match=f"'a': m={2**31}: must be at most"):
        kernel(a, random(K, N))


def test_grid_limits_name_the_dimension(machine, monkeypatch):
    kernel = built(DYNAMIC)
    monkeypatch.setattr(type(kernel.program), "grid", lambda self, sizes: (1, 70000, 1))
    with pytest.raises(
        tg.OperandError, match="'a': m=64: makes 70000 CTAs along grid axis y, which takes 65535"
    ):
        kernel(**operands_of(DYNAMIC, m=64))


@pytest.mark.parametrize("sizes", [{"m": 0}, {"n": 0}])
def test_static_empty_outputs_are_neither_compiled_nor_launched(machine, sizes):
    spec = tg.Gemm(**{"m": M, "n": N, "k": K, "dtype": "bfloat16", **sizes}) | tg.Bias()
    kernel = built(spec)
    operands = operands_of(spec)
    assert kernel(**operands).shape == (spec.m, spec.n)
    assert kernel.plan(**operands).grid is None
    operands["bias"] = operands["bias"].float()
    with pytest.raises(tg.OperandError, match="'bias': dtype"):
        kernel(**operands)
    assert machine.accesses == machine.launches == []


def test_dynamic_empty_outputs_are_not_launched(machine):
    kernel = built(DYNAMIC)
    operands = operands_of(DYNAMIC, m=0)
    out = random(0, N)
    for _ in range(2):
        assert kernel(**operands).shape == (0, N)
        assert kernel(**operands, out=out) is out
    assert str(kernel.plan(**operands)).startswith(
        "gemm_tn_bfloat16_bias: nothing is launched, m=0"
    )
    assert machine.launches == []


def test_k_of_zero_is_launched_without_a_and_b(machine):
    spec = tg.Gemm(m=M, n=N, k=0, dtype="bfloat16") | tg.Bias()
    kernel = built(spec)
    operands = operands_of(spec)
    for _ in range(2):
        assert torch.equal(kernel(**operands), operands["bias"].expand(M, N))
    assert list(machine.launches[0]) == ["bias", "out"]


def test_what_became_empty_reaches_the_kernel_with_the_strides_it_is_built_for():
    keys = tg.dyn("keys")
    spec = tg.Attention(
        batch=1, heads=2, kv_heads=2, seq_q=8, seq_kv=keys, head_dim=64, dtype="bfloat16"
    )
    nothing = random(1, 0, 2, 64).as_strided((1, 0, 2, 64), (64, 64, 64, 2))
    for operand in spec.operands[1:]:
        placement = place(operand, nothing, is_output=False)
        assert placement.access == "unaligned"
        assert passed(nothing, placement).stride(-1) == 1


# --- strides and addresses --------------------------------------------------------------------


def wide(tensor, left=0, right=8):
    """Return the same values as a column slice of a wider tensor."""
    rows, columns = tensor.shape
    buffer = random(rows, left + columns + right, dtype=tensor.dtype)
    part = buffer[:, left : left + columns]
    part.copy_(tensor)
    return part


def shifted(tensor, offset):
    """Return the same values ``offset`` elements into a buffer."""
    buffer = random(tensor.numel() + offset, dtype=tensor.dtype)
    part = buffer[offset:].view(tensor.shape)
    part.copy_(tensor)
    return part


def transposed(tensor):
    return tensor.T.contiguous().T


def every_other(tensor):
    buffer = random(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    buffer[..., ::2] = tensor
    return buffer[..., ::2]


def rows_apart(tensor):
    """Return the same rows, every second of a taller tensor."""
    buffer = random(2 * len(tensor), tensor.shape[1], dtype=tensor.dtype)
    buffer[::2] = tensor
    return buffer[::2]


PLACED = {
    "slice": ("a", wide, "strided", False),
    "slice_at_odd_column": ("a", lambda t: wide(t, 1, 7), "unaligned", False),
    "odd_row_stride": ("b", lambda t: wide(t, 0, 1), "unaligned", False),
    "rows": ("b", rows_apart, "strided", False),
    "offset_1": ("a", lambda t: shifted(t, 1), "unaligned", False),
    "offset_3": ("b", lambda t: shifted(t, 3), "unaligned", False),
    "offset_8": ("b", lambda t: shifted(t, 8), "dense", False),
    "transposed": ("a", transposed, "dense", True),
    "every_other": ("b", every_other, "dense", True),
    "one_row": ("a", lambda t: t[:1].expand(M, K), "unaligned", False),
    "bias_every_other": ("bias", every_other, "strided", False),
    "bias_one_value": ("bias", lambda t: t[:1].expand(N), "strided", False),
    "bias_offset": ("bias", lambda t: shifted(t, 1), "strided", False),
    "residual_transposed": ("residual", transposed, "strided", False),
    "residual_one_row": ("residual", lambda t: t[:1].expand(M, N), "strided", False),
    "residual_slice": ("residual", lambda t: wide(t, 1, 2), "strided", False),
    "scale_offset": ("scale", lambda t: shifted(t, 1), "dense", False),
}


@pytest.mark.parametrize(("name", "change", "access", "copied"), PLACED.values(), ids=PLACED)
def test_strides_choose_the_binary_and_keep_the_values(machine, name, change, access, copied):
    kernel = built(FULL)
    operands = operands_of(FULL)
    kernel(**operands)  # so that the short path is open to what does not belong there
    operands[name] = change(operands[name])
    plan = kernel.plan(**operands)
    assert plan.access == tuple(
        (slot, access if slot == name else "dense") for slot in [*operands, "out", "pre"]
    )
    assert plan.copies == ((name,) if copied else ())
    assert len(machine.launches) == 1
    for _ in range(2):
        assert_right(FULL, operands, kernel(**operands).out)
    read = machine.launches[-1][name]
    assert (read.data_ptr() == operands[name].data_ptr()) == (not copied)
    assert machine.accesses == [()] + ([((name, access),)] if access != "dense" else [])


OUTPUTS = {
    "slice": (wide, "strided", False),
    "odd": (lambda t: wide(t, 1, 7), "unaligned", False),
    "offset": (lambda t: shifted(t, 1), "unaligned", False),
    "transposed": (transposed, "dense", True),
}


@pytest.mark.parametrize(("change", "access", "copied"), OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_of_any_stride_are_written(machine, change, access, copied):
    kernel = built(FULL)
    operands = operands_of(FULL)
    expected = kernel(**operands)
    pre = change(random(M, N))
    plan = kernel.plan(**operands, out={"pre": pre})
    assert dict(plan.access)["pre"] == access
    assert plan.copies == (("pre",) if copied else ())
    for _ in range(2):
        pre.zero_()
        found = kernel(**operands, out={"pre": pre})
        assert found.pre is pre
        assert torch.equal(pre, expected.pre)


def test_strides_of_a_dimension_of_one_do_not_matter(machine):
    spec = tg.Gemm(m=1, n=1, k=1, dtype="bfloat16") | tg.Residual()
    kernel = built(spec)
    operands = operands_of(spec)
    odd = {name: tensor.as_strided((1, 1), (7, 5)) for name, tensor in operands.items()}
    assert kernel.plan(**odd).access == kernel.plan(**operands).access
    assert torch.equal(kernel(**odd), kernel(**operands))

    column = tg.Gemm(m=M, n=1, k=1, dtype="bfloat16", layout="nt")
    kernel = built(column)
    buffer = random(M, 8)
    a = buffer.as_strided((M, 1), (8, 3))
    out = kernel(a, random(1, 1))
    assert machine.accesses[-1] == (("a", "strided"),)
    assert machine.launches[-1]["a"].stride() == (8, 1)
    assert out.shape == (M, 1)


def test_rows_of_dynamic_length_must_be_16_byte_multiples_for_the_fast_binary(machine):
    kernel = built(DYNAMIC)
    for m, access in ((8, "dense"), (65, "unaligned"), (64, "dense"), (100, "unaligned")):
        operands = operands_of(DYNAMIC, m=m)
        assert dict(kernel.plan(**operands).access)["a"] == access
        assert_right(DYNAMIC, operands, kernel(**operands))
    assert machine.accesses == [(), (("a", "unaligned"),)]


def test_a_program_s_own_access_is_left_out(machine):
    program = tg.build(BASE, target="sm_90a").with_access({"a": "unaligned"})
    assert Kernel(program).program.access == ()
    assert machine.accesses == [()]


def test_outputs_in_inference_mode_have_no_version_to_mark(machine):
    kernel = built(BIAS)
    operands = operands_of(BIAS)
    with torch.inference_mode():
        out = random(M, N)
        assert out.is_inference()
        assert kernel(**operands, out=out) is out
    assert_right(BIAS, operands, out)


def test_lazy_negation_is_resolved(machine):
    spec = tg.Gemm(m=M, n=N, k=K, dtype="bfloat16", out_dtype="float32") | tg.Residual(
        dtype="float32"
    )
    kernel = built(spec)
    operands = operands_of(spec)
    kernel(**operands)
    negated = torch._neg_view(operands["residual"].as_subclass(torch.Tensor))
    operands["residual"] = cuda(negated)
    assert operands["residual"].is_neg()
    assert kernel.plan(**operands).copies == ("residual",)
    assert_right(spec, operands, kernel(**operands))
    assert not machine.launches[-1]["residual"].is_neg()


def test_plans_print(machine):
    operands = operands_of(FULL)
    operands["a"] = transposed(operands["a"])
    operands["residual"] = transposed(operands["residual"])
    kernel = built(FULL)
    x, y, z = kernel.program.grid()
    assert str(kernel.plan(**operands)).splitlines() == [
        f"gemm_nn_bfloat16_bias_residual_store_scale_bias: grid {x} x {y} x {z}",
        "  a         dense, copied",
        "  b         dense",
        "  bias      dense",
        "  residual  strided",
        "  scale     dense",
        "  shift     dense",
        "  out       dense",
        "  pre       dense",
    ]


@pytest.mark.nvcc
def test_a_kernel_is_built_where_there_is_no_gpu():
    kernel = tg.build(BIAS, target="sm_90a").compile()
    assert callable(kernel._binaries[()])
    operands = {o.name: torch.zeros(o.shape, dtype=torch.bfloat16) for o in BIAS.operands}
    with pytest.raises(tg.OperandError, match="'a': device=cpu: must be a CUDA device"):
        kernel(**operands)


# --- shared memory of tensors -----------------------------------------------------------------


def test_the_residual_may_be_overwritten_by_the_last_output_alone(machine):
    kernel = built(FULL)
    for warm in range(2):
        operands = operands_of(FULL)
        expected = kernel(**operands).out.clone()
        residual = operands["residual"]
        assert torch.equal(kernel(**operands, out=residual).out, expected), warm
    operands = operands_of(FULL)
    with pytest.raises(tg.OperandError, match="'pre': shares memory with residual"):
        kernel(**operands, out={"pre": operands["residual"]})
    both = random(M, N)
    with pytest.raises(tg.OperandError, match="'pre': shares memory with out"):
        kernel(**operands, out={"out": both, "pre": both})
    buffer = random(M + 1, N)
    operands["residual"] = buffer[:-1]
    with pytest.raises(tg.OperandError, match="'out': shares memory with residual"):
        kernel(**operands, out=buffer[1:])


def test_an_output_may_not_lie_in_a_or_b_nor_on_itself(machine):
    spec = tg.Gemm(m=M, n=K, k=K, dtype="bfloat16") | tg.Bias()
    kernel = built(spec)
    operands = operands_of(spec)
    kernel(**operands)
    with pytest.raises(tg.OperandError, match="'out': shares memory with a; pass a tensor"):
        kernel(**operands, out=operands["a"])
    with pytest.raises(tg.OperandError, match="'out': shares memory with bias"):
        kernel(**{**operands, "bias": (out := random(M, K))[3]}, out=out)
    for strides in ((0, 1), (K - 1, 1), (1, 1)):
        out = random(M, K).as_strided((M, K), strides)
        with pytest.raises(tg.OperandError, match=r"'out': strides=.* an element twice"):
            kernel(**operands, out=out)
    launches = len(machine.launches)
    with pytest.raises(tg.OperandError, match="'out': shares memory with a"):
        kernel.plan(**operands, out=operands["a"])
    assert len(machine.launches) == launches


def test_columns_of_one_buffer_are_told_apart(machine):
    kernel = built(BASE)
    buffer = random(M, K + N)
    b = random(K, N)
    out = kernel(buffer[:, :K], b, out=buffer[:, K:])
    assert_right(BASE, {"a": buffer[:, :K], "b": b}, out)
    with pytest.raises(tg.OperandError, match="'out': shares memory with a"):
        kernel(buffer[:, :K], b, out=buffer[:, K - 8 : K - 8 + N])


def test_an_output_that_is_copied_may_overlap_what_is_read_before(machine):
    square = tg.Gemm(m=K, n=K, k=K, dtype="bfloat16")
    kernel = built(square)
    operands = operands_of(square)
    expected = kernel(**operands).clone()
    out = operands["a"].T
    found = kernel(**operands, out=out)
    assert found is out
    assert torch.equal(found, expected)


def test_overlap_is_judged_from_addresses():
    buffer = torch.zeros(8, 16)
    assert disjoint(buffer[:4], buffer[4:])
    assert not disjoint(buffer[:5], buffer[4:])
    assert disjoint(buffer[:, :8], buffer[:, 8:])
    assert disjoint(buffer[:, 8:], buffer[:, :8])
    assert disjoint(buffer[1:, :8], buffer[:5, 8:])
    assert not disjoint(buffer[:, :9], buffer[:, 8:])
    assert not disjoint(buffer.T, buffer)
    assert disjoint(buffer[:0], buffer)
    assert not overlaps_itself(buffer.T)
    assert not overlaps_itself(buffer[:, ::3])
    assert overlaps_itself(buffer.expand(2, 8, 16))
    assert overlaps_itself(buffer.as_strided((4, 4), (3, 1)))


# --- threads, memory of shapes, cost ----------------------------------------------------------


def test_threads_may_share_a_kernel(machine):
    kernel = built(FULL)
    operands = operands_of(FULL)
    expected = kernel(**operands).out
    shapes = (operands, {**operands, "a": wide(operands["a"])})
    found = []

    def work(mine):
        for _ in range(20):
            found.append(torch.equal(kernel(**mine).out, expected))

    threads = [threading.Thread(target=work, args=(shapes[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(found)


def test_what_is_remembered_is_bounded(machine, monkeypatch):
    monkeypatch.setitem(Kernel.__init__.__globals__, "_KEPT", 4)
    kernel = built(DYNAMIC)
    for m in range(8, 96, 8):
        operands = operands_of(DYNAMIC, m=m)
        for _ in range(2):
            assert_right(DYNAMIC, operands, kernel(**operands))
    assert len(kernel._routes) <= 4
    assert len(kernel._direct_routes) <= 4


def test_a_warm_call_of_dense_tensors_takes_the_short_path(machine, monkeypatch):
    kernel = built(DYNAMIC)
    operands = operands_of(DYNAMIC, m=64)
    kernel(**operands)
    monkeypatch.setattr(Kernel, "_routed", None)
    assert_right(DYNAMIC, operands, kernel(**operands))
    out = random(64, N)
    allocations = machine.allocations
    assert kernel(**operands, out=out) is out
    assert machine.allocations == allocations
    assert isinstance(out, CudaTensor)
