"""Block maps: what the builder lists, what kernels make of it, and which maps are refused."""

import re

import pytest
import torch
from attrs import evolve
from simulate.test_attention import SMALL
from torch.nn.attention.flex_attention import create_block_mask

import tilegen as tg
from tilegen.dims import known_sizes
from tilegen.reference import inputs
from tilegen.simulate import run_program
from tilegen.torch_op import define

torch.set_num_threads(1)

ids = torch.tensor([0] * 70 + [1] * 7 + [2] * 60 + [3] * 140, dtype=torch.int32)


def _same(b, h, q_idx, kv_idx):
    return (ids[q_idx] == ids[kv_idx]) | (kv_idx < 40 * b + 33 * h)


def attention(**fields):
    shape = {"batch": 2, "heads": 2, "kv_heads": 1, "seq_q": 140, "seq_kv": 200, "head_dim": 32}
    return tg.Attention(**{**shape, "dtype": "float16", "block_map": (64, 64), **fields})


def built(spec, target="sm_90a", **schedule):
    return tg.build(spec, target=target, schedule=tg.AttentionSchedule(**SMALL | schedule))


def roles(block_map=(128, 64), block_n=64, **fields):
    spec = attention(block_map=block_map, **fields)
    schedule = tg.AttentionSchedule(variant="warp_specialized", block_m=128, block_n=block_n)
    return tg.build(spec, target="sm_90a", schedule=schedule)


def drawn(spec, **sizes):
    return inputs(spec, known_sizes(spec, sizes), torch.Generator().manual_seed(0))


# --- kernels ----------------------------------------------------------------------------------

DYNAMIC = {"seq_q": tg.dyn("sq", hint=140), "seq_kv": tg.dyn("skv", hint=200), "layout": "bhsd"}
PROGRAMS = {
    "documents": built(attention(mask=tg.DocumentMask() & tg.Causal(), sink=True)),
    "functions": built(attention(mask=tg.MaskMod(_same), return_lse=True), block_n=64),
    "tensor": built(attention(mask=tg.MaskTensor() & tg.Window(90, 9), seq_kv=96), "sm_80"),
    "dynamic": built(attention(mask=~tg.DocumentMask(), return_lse=True, **DYNAMIC)),
    "roles": roles(mask=tg.DocumentMask() & tg.Causal()),
    "roles, two steps a block": roles(mask=tg.MaskMod(_same), block_n=32, return_lse=True),
    "roles, dynamic": roles(mask=~tg.DocumentMask(), scores=(tg.Alibi(),), **DYNAMIC),
}


@pytest.mark.parametrize("level", ["tile", "scheduled"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_agree_with_the_mask(name, level):
    program = PROGRAMS[name]
    shapes = [{}]
    if name.endswith("dynamic"):
        shapes = [{"sq": 70, "skv": 130}, {"sq": 5, "skv": 0}, {"sq": 129, "skv": 64}]
    for sizes in shapes:
        assert tg.verify(program, on="cpu", level=level, sizes=sizes, seed=1).ok


@pytest.mark.parametrize("variant", ["pipelined", "warp_specialized"])
def test_a_kernel_loads_what_is_listed_and_masks_what_is_not_whole(variant):
    size = {"pipelined": (64, 64), "warp_specialized": (128, 64)}[variant]
    spec = attention(mask=tg.MaskTensor(), batch=1, block_map=size)
    program = built(spec) if variant == "pipelined" else roles(mask=tg.MaskTensor(), batch=1)
    operands = drawn(spec)
    operands["mask"][:] = False
    operands["mask"][..., 64:] = True
    operands["block_map"] = tg.block_mask(program, mask=operands["mask"]).clone()
    assert operands["block_map"][0, 0].tolist() == [[1, 2, 3, 0, 3, 0]] * (-(-140 // size[0]))
    assert close(run_program(program, operands), truth(spec, operands))
    # A map that says else is obeyed: block 3 is not seen, and block 0 as if the mask showed it.
    operands["block_map"][:] = torch.tensor([1, 2, 0, 3, 3, 0])
    mask = (torch.arange(200) < 192).expand(1, 2, 140, 200)
    assert close(run_program(program, operands), truth(spec, {**operands, "mask": mask}))


def truth(spec, operands):
    plain = {name: tensor for name, tensor in operands.items() if name != "block_map"}
    return tg.reference(evolve(spec, block_map=None), **plain)


def close(a, b):
    return torch.allclose(a.float(), b, atol=2e-3, rtol=2e-3)


def test_a_map_changes_nothing():
    program = PROGRAMS["documents"]
    operands = drawn(program.spec)
    plain = {name: tensor for name, tensor in operands.items() if name != "block_map"}
    without = built(evolve(program.spec, block_map=None))
    assert close(run_program(program, operands), run_program(without, plain).float())


@pytest.mark.parametrize("name", ["documents", "roles"])
def test_values_behind_the_map_change_nothing(name):
    program = PROGRAMS[name]
    operands = drawn(program.spec)
    before = run_program(program, operands)
    for value in (torch.nan, torch.inf):
        operands["k"][:, 190:] = operands["v"][:, 190:] = value
        after = run_program(program, operands)
        assert torch.equal(after[:, :130], before[:, :130])


# --- maps -------------------------------------------------------------------------------------

MASKS = {
    "documents": lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx],
    "diagonals": lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() < 40 + 50 * h,
    "sequences": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (kv_idx > 64 * b),
    "all": lambda b, h, q_idx, kv_idx: kv_idx >= 0,
}


@pytest.mark.parametrize("name", MASKS)
def test_maps_are_those_of_flex_attention(name):
    spec = attention(mask=tg.MaskMod(MASKS[name]), seq_q=128, seq_kv=256, block_map=(32, 64))
    built_of = {"ids": ids} if name == "documents" else {}
    found = tg.block_mask(spec, **built_of)
    theirs = create_block_mask(MASKS[name], 2, 2, 128, 256, device="cpu", BLOCK_SIZE=(32, 64))
    dense = torch.zeros(2, 2, 4, 4, dtype=torch.int32)
    kinds = (
        (theirs.kv_num_blocks, theirs.kv_indices),
        (theirs.full_kv_num_blocks, theirs.full_kv_indices),
    )
    for kind, (counts, blocks) in enumerate(kinds, 1):
        listed = torch.arange(4) < counts[..., None]
        dense += kind * torch.zeros_like(dense).scatter_add(-1, blocks.long(), listed.int())
    for b, h, row in torch.cartesian_prod(*map(torch.arange, (2, 2, 4))).tolist():
        kinds = dense[b, h, row].tolist()
        partial, whole = ([n for n, kind in enumerate(kinds) if kind == k] for k in (1, 2))
        assert found[b, h, row, : len(partial + whole)].tolist() == partial + whole
        visited = len(partial + whole)  # or one, of which nothing is seen
        assert found[b, h, row, -2:].tolist() == [max(visited, 1), len(partial) or not visited]


def test_what_does_not_differ_is_expanded():
    spec = attention(mask=tg.MaskMod(MASKS["documents"]))
    assert tg.block_mask(spec, ids=ids).stride()[:2] == (0, 0)
    documents = torch.randint(3, (2, 200), dtype=torch.int32)
    shared = tg.block_mask(attention(mask=tg.DocumentMask()), documents=documents)
    assert (shared.shape, shared.stride(1)) == ((2, 2, 3, 6), 0)
    mask = torch.rand(140, 200) < 0.01
    spec = attention(mask=tg.MaskTensor())
    lean = tg.block_mask(spec, mask=mask.expand(2, 2, 140, 200))
    assert lean.stride()[:2] == (0, 0)
    assert torch.equal(lean, tg.block_mask(spec, mask=mask.repeat(2, 2, 1, 1)))
    assert tg.verify(built(spec), on="cpu", operands={"mask": mask.expand(2, 2, 140, 200)}).ok


def test_building_waits_for_no_device():
    """A tensor without values has none to wait for."""
    spec = attention(mask=tg.MaskMod(_same) & tg.DocumentMask() & tg.MaskTensor(), **DYNAMIC)
    operands = {name: tensor.to("meta") for name, tensor in drawn(spec, sq=9, skv=300).items()}
    names = ("ids", "documents", "mask")
    found = tg.block_mask(spec, **{name: operands[name] for name in names})
    assert (found.shape, found.device.type) == ((2, 2, 1, 7), "meta")


LIES = {
    "a block left out": ([1, 2, 3, 0, 3, 3], "leaves out"),
    "a block called whole": ([0, 1, 2, 3, 4, 3], "calls a block whole"),
    "a block twice": ([0, 1, 1, 3, 4, 4], "lists a block twice"),
    "a block beyond": ([0, 1, 2, 4, 4, 4], "lists a block that there is not"),
    "too many": ([0, 1, 2, 3, 5, 4], "has no such numbers of blocks"),
    "none at all": ([0, 1, 2, 3, 0, 0], "has no such numbers of blocks"),
    "more in part than there are": ([0, 1, 2, 3, 4, 5], "has no such numbers of blocks"),
}


@pytest.mark.parametrize(("lie", "message"), LIES.values(), ids=LIES)
def test_a_map_that_disagrees_is_refused(lie, message):
    spec = attention(mask=tg.MaskTensor())
    operands = drawn(spec)
    operands["mask"][0, 1, :128] = torch.rand(128, 200) < 0.5
    operands["mask"][0, 1, 128:] = False
    operands["block_map"] = tg.block_mask(spec, mask=operands["mask"]).clone()
    tg.reference(spec, **operands)
    assert operands["block_map"][0, 1].tolist() == [[0, 1, 2, 3, 4, 4]] * 2 + [[0, 1, 2, 3, 1, 1]]
    operands["block_map"][0, 1, 1] = torch.tensor(lie)
    for check in (
        lambda: tg.verify(built(spec), on="cpu", operands=operands),
        lambda: tg.reference(spec, **operands),
    ):
        with pytest.raises(
            tg.OperandError, match=rf"'block_map': block_map\[0, 1, 1\] .*{message}"
        ):
            check()


WRONG = {
    "no map": (lambda spec: tg.block_mask(evolve(spec, block_map=None)), "has no block map"),
    "missing": (
        lambda spec: tg.block_mask(spec),
        "'documents': is missing; pass documents= (2, skv)",
    ),
    "unknown": (lambda spec: tg.block_mask(spec, document=ids), "'document': is unknown"),
    "type": (
        lambda spec: tg.block_mask(spec, documents=torch.zeros(2, 9)),
        "'documents': is (2, 9) torch.float32: must be (2, skv) int32",
    ),
    "size": (
        lambda spec: tg.block_mask(spec, documents=torch.zeros(2, 9, dtype=torch.int32)),
        "has no value for the dynamic dimension 'sq'",
    ),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_what_no_map_can_be_made_of_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(attention(mask=tg.DocumentMask(), **DYNAMIC))


def test_a_map_of_another_shape_is_refused():
    spec = attention(mask=tg.DocumentMask(), **DYNAMIC)
    operands = drawn(spec, sq=140, skv=200)
    operands["block_map"] = operands["block_map"][..., 1:]
    message = r"must be \(2, 2, ceil\(sq / 64\), ceil\(skv / 64\) \+ 2\) with sq=140, skv=200"
    with pytest.raises(tg.OperandError, match=message):
        built(spec).simulate(**operands)


def test_an_operator_takes_maps_of_the_right_shape():
    spec = attention(mask=tg.DocumentMask(), **DYNAMIC)
    op = define("tilegen_map_tests::mapped", spec, tg.reference, "cpu")
    *others, block_map = (tensor.to("meta") for tensor in drawn(spec, sq=140, skv=200).values())
    assert op(*others, block_map).shape == (2, 2, 140, 32)
    with pytest.raises(tg.OperandError, match=r"'block_map': axis 3 must be ceil\(skv / 64\) \+ 2"):
        op(*others, block_map[..., 1:])
