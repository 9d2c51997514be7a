"""Matrix products give the right values, without a diagnostic."""

import pytest
import simulate.products as products
import torch
from simulate.test_idioms import close
from simulate.test_kernels import drawn, run

torch.set_num_threads(1)
HALF = torch.float16


@pytest.mark.parametrize("b_transposed", [False, True], ids=["n", "t"])
@pytest.mark.parametrize("a_transposed", [False, True], ids=["n", "t"])
def test_every_transpose(a_transposed, b_transposed):
    a, b = drawn(40, 72, dtype=torch.bfloat16), drawn(72, 50, dtype=torch.bfloat16)
    function = products.transposed_product(40, 50, 72, a_transposed, b_transposed)
    placed = [
        t.T.contiguous() if turned else t for t, turned in ((a, a_transposed), (b, b_transposed))
    ]
    out = run(function, *placed, torch.empty(40, 50).bfloat16())
    close(out.float(), a.float() @ b.float(), 1e-2)


def test_batched_product():
    a, b = drawn(2, 40, 72, dtype=HALF), drawn(2, 72, 50, dtype=HALF)
    out = run(products.batched_product(40, 50, 72, 2), a, b, torch.empty(2, 40, 50).half())
    close(out.float(), a.float() @ b.float(), 1e-2)


def test_dequantized_product():
    a = drawn(40, 64, dtype=HALF)
    packed = torch.randint(0, 256, (48, 32), generator=torch.Generator().manual_seed(0))
    scale = drawn(48, 2, dtype=HALF)
    function = products.dequantized_product(40, 48, 64, 32)
    out = run(function, a, packed.to(torch.uint8), scale, torch.empty(40, 48))
    weight = torch.stack([packed % 16, packed // 16], -1).view(48, 64) - 8
    weight = weight.half() * scale.repeat_interleave(32, 1)
    close(out, a.float() @ weight.float().T, 1e-4)


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_persistent_product(workers):
    a, b = drawn(70, 64, dtype=HALF), drawn(100, 64, dtype=HALF)
    out = run(products.persistent_product(70, 100, 64, workers), a, b, torch.empty(70, 100))
    close(out, a.float() @ b.float().T, 1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_split_k_with_a_second_launch(seed):
    a, b = drawn(40, 128, dtype=HALF), drawn(128, 50, dtype=HALF)
    tensors = (a, b, torch.empty(2, 40, 50), torch.empty(40, 50).half())
    function = products.split_k_combined(40, 50, 128, 2)
    out = run(function, *tensors, outputs=("partial", "out"), seed=seed)
    close(out.float(), a.float() @ b.float(), 1e-2)


def test_product_of_gathered_rows():
    a, b = drawn(20, 72, dtype=HALF), drawn(40, 72, dtype=HALF)
    chosen = torch.randint(0, 20, (21,), generator=torch.Generator().manual_seed(0)).int()
    out = run(products.gathered_product(20, 21, 40, 72), a, chosen, b, torch.empty(21, 40))
    close(out, a[chosen.long()].float() @ b.float().T, 1e-4)


def test_gated_product():
    a, gate, up = (drawn(size, 72, dtype=HALF, scale=0.3) for size in (40, 48, 48))
    out = run(products.gated_product(40, 48, 72), a, gate, up, torch.empty(40, 48).half())
    gates, values = a.float() @ gate.float().T, a.float() @ up.float().T
    close(out.float(), torch.nn.functional.silu(gates) * values, 2e-3)


def test_tensor_float_product_reads_19_bits():
    a, b = drawn(40, 72), drawn(48, 72, seed=1)
    out = run(products.tensor_float_product(40, 48, 72), a, b, torch.empty(40, 48))
    cut = [(t.view(torch.int32) & -(1 << 13)).view(torch.float32) for t in (a, b)]
    close(out, cut[0] @ cut[1].T, 1e-5)
    assert not torch.allclose(out, a @ b.T, atol=1e-4)


def test_matrix_times_vector():
    a, x = drawn(20, 100, dtype=HALF), drawn(100, dtype=HALF)
    out = run(products.matrix_vector(20, 100), a, x, torch.empty(20))
    close(out, a.float() @ x.float())


def test_image_convolution():
    image, weight = drawn(5, 20, 16, dtype=HALF), drawn(3, 3, 16, 16, dtype=HALF)
    out = run(products.image_convolution(5, 20, 16, 16), image, weight, torch.empty(5, 20, 16))
    expected = torch.nn.functional.conv2d(
        image.float().permute(2, 0, 1)[None], weight.float().permute(3, 2, 0, 1), padding=1
    )
    close(out, expected[0].permute(1, 2, 0), 1e-4)
