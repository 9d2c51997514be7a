"""Attention kernels on a GPU: options in combination, lengths, ratios, widths, values, peers."""

from functools import cache
from itertools import product

import pytest
import torch
from gpu.compiling import compile_all
from simulate.test_attention import HARD, LAYOUTS, MASKS, NOT_FINITE, SCORES
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import tilegen as tg
from tilegen.dims import known_sizes
from tilegen.reference import inputs
from tilegen.specs.block_map import follows_from_sizes
from tilegen.specs.masks import reads

pytestmark = pytest.mark.gpu

BASE = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 200, "seq_kv": 333, "head_dim": 64}
SEQS = ((1, 1), (1, 1000), (63, 64), (64, 63), (65, 65), (127, 129), (129, 127), (1000, 1000))
SEQS += ((1000, 127), (0, 64), (64, 0))
RATIOS = (1, 2, 3, 5, 7, 12)
WIDTHS = ((32, 32), (64, 64), (72, 72), (96, 96), (128, 128), (192, 192), (256, 256), (192, 128))
VARIANTS = ("pipelined", "warp_specialized")
OF_ROLES = ("warp-specialized", "block-map", "registers")


def attention(**fields):
    return tg.Attention(**{**BASE, "dtype": "bfloat16", **fields})


def combinations():
    """Yield every mask with every score in every layout; element types take turns."""
    for number, (mask, score, layout) in enumerate(product(MASKS, SCORES, LAYOUTS)):
        spec = attention(
            **LAYOUTS[layout],
            mask=MASKS[mask],
            scores=SCORES[score],
            dtype=("float16", "bfloat16")[number % 2],
            sink=number % 3 == 0,
            return_lse=True,
        )
        yield f"{mask}-{score}-{layout}", spec


def lengths():
    for seq_q, seq_kv in SEQS:
        for mask in (None, tg.Causal(), tg.Window(40, 7)):
            fields = {"seq_q": seq_q, "seq_kv": seq_kv, "mask": mask, "return_lse": True}
            yield f"{seq_q}-{seq_kv}-{mask!r}", attention(**fields)


def shapes():
    for ratio in RATIOS:
        yield f"ratio-{ratio}", attention(heads=2 * ratio, mask=tg.Causal())
    for width, width_v in WIDTHS:
        for mask in (None, tg.Causal()):
            fields = {"head_dim": width, "head_dim_v": width_v, "mask": mask, "return_lse": True}
            yield f"width-{width}-{width_v}-{mask!r}", attention(**fields)


def mapped():
    for name, mask in MASKS.items():
        if mask is not None and not follows_from_sizes(mask):
            fields = {"mask": mask, "block_map": (128, 128), "return_lse": True}
            yield f"mapped-{name}", attention(**fields)


DYNAMIC = {
    "dense": attention(
        seq_q=tg.dyn("sq"), seq_kv=tg.dyn("skv"), mask=tg.Causal(), return_lse=True
    ),
    "packed": attention(
        batch=5, seq_q=tg.dyn("sq"), seq_kv=tg.dyn("skv"), mask=tg.Causal(), varlen=True,
        return_lse=True,
    ),
}  # fmt: skip
COMBINED, LENGTHS, SHAPED = dict(combinations()), dict(lengths()), dict(shapes())
MAPPED = dict(mapped())
HARD_SPECS = {
    name: tg.Attention(
        batch=1, heads=2, kv_heads=1, seq_q=70, seq_kv=90, head_dim=32, dtype="float16",
        mask=mask, return_lse=True,
    )
    for name, mask in (("full", None), ("causal", tg.Causal()))
}  # fmt: skip


def programs():
    """Yield (name, variant) and program of everything that the module runs."""
    every = COMBINED | LENGTHS | SHAPED | DYNAMIC | MAPPED
    every |= {f"hard-{name}": spec for name, spec in HARD_SPECS.items()}
    for name, spec in every.items():
        for variant in VARIANTS:
            program = made(spec, variant)
            if program is not None and not program.geometry.is_empty:
                yield (name, variant), program


@cache
def made(spec, variant):
    """Return the program of a variant, or None where a rule refuses that."""
    try:
        return tg.build(spec, schedule=tg.AttentionSchedule(variant=variant))
    except tg.LegalityError as error:
        if variant == "pipelined" or error.rule not in OF_ROLES:
            raise
        return None


@pytest.fixture(scope="session", autouse=True)
def compiled_attention():
    compile_all(program for _, program in programs())


@cache
def kernel_of(spec, variant):
    program = made(spec, variant)
    return None if program is None else program.compile()


def verified(spec, variant, **options):
    kernel = kernel_of(spec, variant)
    if kernel is None:
        pytest.skip(f"{variant} is refused for this spec")
    return tg.verify(kernel, **options)


each_variant = pytest.mark.parametrize("variant", VARIANTS)


@each_variant
@pytest.mark.parametrize("name", COMBINED)
def test_masks_and_scores_in_every_combination(name, variant):
    assert verified(COMBINED[name], variant, seed=1).ok


@each_variant
@pytest.mark.parametrize("name", LENGTHS)
def test_every_length(name, variant):
    assert verified(LENGTHS[name], variant, seed=2).ok


@each_variant
@pytest.mark.parametrize("name", SHAPED)
def test_every_ratio_and_width(name, variant):
    assert verified(SHAPED[name], variant, seed=3).ok


@pytest.mark.parametrize("name", DYNAMIC)
@each_variant
def test_one_kernel_serves_any_length(name, variant):
    for seq_q, seq_kv in (*SEQS, (5, 3000), (3000, 5)):
        assert verified(DYNAMIC[name], variant, sizes={"sq": seq_q, "skv": seq_kv}, seed=seq_kv).ok


@each_variant
@pytest.mark.parametrize("name", HARD_SPECS)
@pytest.mark.parametrize("change", HARD.values(), ids=HARD)
def test_hard_scores(name, change, variant):
    spec = HARD_SPECS[name]
    operands = inputs(spec, {}, torch.Generator("cuda").manual_seed(0))
    change(operands)
    assert verified(spec, variant, operands=operands).ok


@each_variant
@pytest.mark.parametrize("value", NOT_FINITE)
def test_values_that_are_not_finite_reach_who_sees_them(value, variant):
    spec = HARD_SPECS["causal"]
    operands = inputs(spec, {}, torch.Generator("cuda").manual_seed(0))
    operands["v"][0, 85, 0, 3] = value
    operands["v"][0, 11, 0, 30] = value
    assert verified(spec, variant, operands=operands).ok


@pytest.mark.parametrize("name", MAPPED)
def test_block_maps(name):
    spec = MAPPED[name]
    assert verified(spec, "pipelined", seed=4).ok
    operands = inputs(spec, known_sizes(spec, {}), torch.Generator("cuda").manual_seed(0))
    needed = {name: operands[name] for name in reads(spec.mask)}
    torch.cuda.set_sync_debug_mode("error")
    try:
        lean = tg.block_mask(spec, sizes={}, device="cuda", **needed)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(lean, operands["block_map"])
    assert verified(spec, "pipelined", operands={**operands, "block_map": lean}).ok


@each_variant
def test_offsets_beyond_32_bits(variant):
    spec = attention(batch=tg.dyn("batch"), heads=16, kv_heads=16, seq_q=1300, seq_kv=1300,
                     head_dim=72, mask=tg.Causal(), return_lse=True)  # fmt: skip
    kernel = kernel_of(spec, variant)
    if kernel is None:
        pytest.skip(f"{variant} is refused for this spec")
    shape = (1600, 1300, 16, 72)  # 2.4e9 elements
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    whole, last = kernel(q, k, v), kernel(*(tensor[-2:].clone() for tensor in (q, k, v)))
    assert torch.equal(whole.out[-2:], last.out)
    assert torch.equal(whole.lse[-2:], last.lse)


ENDS = {
    "empty ones": ([0, 0, 1, 1, 2], [0, 0, 1, 1, 2], 9, 3, 64),
    "no queries, no keys": ([0, 0, 1208, 2048, 2048], [0, 2538, 4280, 5120, 8192], 4, 1, 256),
    "one of all": ([0, 0, 3000, 3000, 3000], [0, 0, 5000, 5000, 5000], 2, 1, 128),
}


@pytest.mark.parametrize("name", ENDS)
def test_packed_sequences_of_any_lengths(name):
    ends_q, ends_kv, heads, kv_heads, width = ENDS[name]
    spec = attention(heads=heads, kv_heads=kv_heads, head_dim=width, batch=4, varlen=True,
                     seq_q=ends_q[-1], seq_kv=ends_kv[-1], mask=tg.Causal(),
                     return_lse=True)  # fmt: skip
    ends = {"cu_seqlens_q": ends_q, "cu_seqlens_kv": ends_kv}
    operands = {side: torch.tensor(end).int().cuda() for side, end in ends.items()}
    assert tg.verify(kernel_of(spec, "pipelined"), operands=operands).ok


@each_variant
def test_slices_of_packed_tensors_are_read_in_place(variant):
    kernel = kernel_of(SHAPED["ratio-2"], variant)
    packed = torch.randn(2, 333, 8, 64, device="cuda", dtype=torch.bfloat16)
    operands = {"q": packed[:, :200, :4], "k": packed[:, :, 4:6], "v": packed[:, :, 6:]}
    plan = kernel.plan(**operands)
    assert plan.copies == ()
    assert dict(plan.access)["q"] == "strided"
    assert tg.verify(kernel, operands=operands).ok


@each_variant
def test_expanded_masks_and_odd_pointers(variant):
    spec = attention(mask=tg.MaskTensor(), scores=(tg.ScoreBias(),))
    operands = inputs(spec, {}, torch.Generator("cuda").manual_seed(0))
    operands["bias"] = torch.randn(361, device="cuda").bfloat16()[:333].expand(2, 4, 200, 333)
    operands["mask"] = operands["mask"][:1, :1].expand(2, 4, 200, 333)
    assert verified(spec, variant, operands=operands).ok
    odd = torch.randn(2 * 333 * 2 * 64 + 1, device="cuda").bfloat16()[1:]
    operands["v"] = odd.view(2, 333, 2, 64)
    assert verified(spec, variant, operands=operands).ok


@pytest.mark.parametrize("case", ["causal", "documents", "sliding", "relative"])
def test_flex_attention_agrees_given_the_same_functions(case):
    ids = (torch.arange(512, device="cuda") // 100).int()
    slopes = torch.rand(4, device="cuda")
    masks = {
        "causal": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
        "documents": lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx],
        "sliding": lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() <= 64,
        "relative": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
    }

    def relative(score, b, h, q_idx, kv_idx):
        return 20 * torch.tanh((score + slopes[h] * (kv_idx - q_idx)) / 20)

    score = relative if case == "relative" else None
    spec = attention(
        seq_q=512, seq_kv=512, layout="bhsd", mask=tg.MaskMod(masks[case]),
        scores=(tg.ScoreMod(score),) if score else (),
    )  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(o.shape, device="cuda", dtype=torch.bfloat16, generator=generator)
        for o in spec.operands[:3]
    )
    captured = {"ids": ids, "slopes": slopes}
    own = {o.name: captured[o.name] for o in spec.operands if o.name in captured}
    out = tg.build(spec).compile()(q, k, v, **own)
    block_mask = create_block_mask(masks[case], None, None, 512, 512, device="cuda")
    expected = flex_attention(q, k, v, score, block_mask, enable_gqa=True)
    torch.testing.assert_close(out.float(), expected.float(), atol=2e-2, rtol=2e-2)


def test_a_captured_graph_replays():
    kernel = kernel_of(SHAPED["ratio-2"], "warp_specialized")
    operands = inputs(SHAPED["ratio-2"], {}, torch.Generator("cuda").manual_seed(0))
    out = kernel(**operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel(**operands)
    operands["q"].mul_(2)
    graph.replay()
    assert torch.equal(captured, kernel(**operands))
    assert not torch.equal(captured, out)


def test_runs_agree_under_load():
    spec = attention(batch=4, heads=16, kv_heads=4, seq_q=2000, seq_kv=2000, head_dim=128,
                     mask=tg.Causal())  # fmt: skip
    kernel = kernel_of(spec, "warp_specialized")
    operands = inputs(spec, {}, torch.Generator("cuda").manual_seed(0))
    first = kernel(**operands)
    assert all(torch.equal(kernel(**operands), first) for _ in range(30))
