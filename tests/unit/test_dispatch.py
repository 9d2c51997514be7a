"""A dispatch: which callable serves which shapes, one kernel a column count, and as a torch op."""

import itertools
import threading

import pytest
import torch

import tilegen as tg
from tilegen import dispatch as dispatching
from tilegen.errors import OperandError, SpecError

F = torch.nn.functional
NUMBERS = itertools.count()
ROWS = tg.dyn("rows")


def by_hand(x, bias):
    return F.silu(x + bias)


def spec(cols):
    return tg.Elementwise(
        shape=(ROWS, cols),
        fn=lambda x, bias: F.silu(x + bias),
        dtype="float32",
        operands={"bias": tg.Input(-1)},
    )


class Stand:
    """Passes for a kernel on the CPU: computes, and keeps what it was called with."""

    def __init__(self, spec):
        self.spec, self.calls = spec, []

    def __call__(self, x, bias):
        self.calls.append((tuple(x.shape), tuple(bias.shape)))
        assert x.shape[-1] == self.spec.shape[-1]
        return F.silu(x + bias)


@pytest.fixture
def built(monkeypatch):
    """Return the specs that kernels are built for; the kernels compute on the CPU."""
    specs = []

    class Program:
        def __init__(self, spec):
            self.spec = spec

        def compile(self):
            specs.append(self.spec)
            return Stand(self.spec)

    monkeypatch.setattr(dispatching, "build", lambda spec, **options: Program(spec))
    return specs


def made(**changes):
    calls = []

    def existing(x, bias):
        calls.append(tuple(x.shape))
        return by_hand(x, bias)

    options = {"when": lambda x, bias: x[-1] in (96, 192), "spec": spec, **changes}
    return tg.Dispatch(existing, **options), calls


def operands(*shape):
    return torch.randn(*shape), torch.randn(shape[-1])


@pytest.mark.parametrize("cols", [96, 192])
def test_the_existing_callable_keeps_its_shapes(built, cols):
    op, calls = made()
    x, bias = operands(2, 3, 5, 7, cols)
    assert torch.equal(op(x, bias), by_hand(x, bias))
    assert calls == [(2, 3, 5, 7, cols)]
    assert built == []


@pytest.mark.parametrize("cols", [160, 256, 1])
def test_kernels_serve_the_rest_as_rows(built, cols):
    op, calls = made()
    x, bias = operands(2, 3, 5, 7, cols)
    found = op(x, bias=bias)
    assert torch.equal(found, by_hand(x, bias))
    assert calls == []
    assert op.built == (cols,)
    assert op.kernel(cols).calls == [((210, cols), (cols,))]


def test_one_kernel_serves_every_number_of_rows(built):
    op, _ = made()
    for lead in ((4,), (3, 9), (1, 1, 1), (0, 5), ()):
        x, bias = operands(*lead, 40)
        assert torch.equal(op(x, bias), by_hand(x, bias))
        assert op(x, bias).shape == x.shape
    assert len(built) == 1
    op(*operands(3, 48))
    assert [spec.shape[-1] for spec in built] == [40, 48]


def test_threads_build_a_kernel_once(built):
    op, _ = made()
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        op(*operands(4, 40))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_strides_that_allow_no_view_are_copied(built):
    op, _ = made()
    x, bias = operands(3, 40, 5)
    x, bias = x.transpose(1, 2), torch.randn(40)
    torch.testing.assert_close(op(x, bias), by_hand(x, bias))


def test_a_spec_without_dynamic_rows_is_refused():
    fixed = tg.Elementwise(shape=(8, 40), fn=lambda x: x * 2, dtype="float32")
    with pytest.raises(SpecError, match="rows of a dynamic number"):
        tg.Dispatch(by_hand, when=lambda x: False, spec=lambda cols: fixed)


def test_operands_that_do_not_fit_are_named(built):
    op, _ = made()
    with pytest.raises(OperandError, match="is missing"):
        op(torch.randn(3, 40))
    with pytest.raises(OperandError, match=r"not a torch\.Tensor"):
        op(torch.randn(3, 40), 1.0)
    with pytest.raises(OperandError, match="must have an axis of columns"):
        op(torch.tensor(1.0), torch.randn(40))


def test_tensors_with_other_rows_are_named(built):
    def two(cols):
        return tg.Elementwise(shape=(ROWS, cols), fn=lambda x, y: x + y, dtype="float32")

    op = tg.Dispatch(torch.add, when=lambda x, y: False, spec=two)
    with pytest.raises(OperandError, match=r"must start with \(2, 3\)") as raised:
        op(torch.randn(2, 3, 8), torch.randn(3, 2, 8))
    assert raised.value.operand == "y"


@pytest.fixture
def registered(built):
    op, calls = made()
    return op._registered(f"tilegen_tests::dispatch_{next(NUMBERS)}", "cpu"), op, calls


@pytest.mark.parametrize("shape", [(2, 3, 96), (2, 3, 40), (7, 192), (1, 1, 1, 1, 24)])
def test_the_torch_op_dispatches(registered, shape):
    torch_op, _, calls = registered
    x, bias = operands(*shape)
    assert torch.equal(torch_op(x, bias), by_hand(x, bias))
    assert len(calls) == (shape[-1] in (96, 192))
    torch.library.opcheck(torch_op, (x, bias))


def test_the_torch_op_compiles_without_a_graph_break(registered):
    torch_op, op, calls = registered
    compiled = torch.compile(
        lambda x, bias: torch_op(x * 2, bias) + 1, fullgraph=True, backend="aot_eager"
    )
    for shape in ((2, 3, 96), (2, 3, 40), (5, 3, 40)):
        x, bias = operands(*shape)
        torch.testing.assert_close(compiled(x, bias), by_hand(x * 2, bias) + 1)
    assert op.built == (40,)
    assert calls == [(2, 3, 96)]


def test_an_existing_callable_may_return_any_strides(built):
    def transposing(x, bias):
        return by_hand(x, bias).T.contiguous().T

    op = tg.Dispatch(transposing, when=lambda x, bias: True, spec=spec)
    torch_op = op._registered(f"tilegen_tests::dispatch_{next(NUMBERS)}", "cpu")
    torch.library.opcheck(torch_op, operands(3, 8))
    assert torch_op(*operands(3, 8)).is_contiguous()


def test_gradients_are_refused_by_the_torch_op(registered):
    torch_op, _, _ = registered
    x, bias = operands(3, 40)
    with pytest.raises(OperandError, match="has no backward"):
        torch_op(x.requires_grad_(), bias)
