"""GEMMs with roles on a GPU: values of each tile shape, layout, tail and way out."""

from itertools import product

import pytest
from gpu.compiling import compile_all
from gpu.test_gemm import CHAINS, LAYOUTS, OPS, check, gemm

import tilegen as tg
from tilegen.schedules.gemm import GemmSchedule

pytestmark = pytest.mark.gpu

TILES = {
    "wide": {"block_m": 128, "block_n": 256, "block_k": 64, "num_stages": 3, "threads": 256},
    "tall": {"block_m": 256, "block_n": 128, "block_k": 64, "num_stages": 2, "threads": 256},
    "one_group": {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 4, "threads": 128},
    "swapped": {"block_m": 16, "block_n": 64, "block_k": 64, "num_stages": 5, "threads": 128},
    "swapped_two": {"block_m": 48, "block_n": 128, "block_k": 64, "num_stages": 4, "threads": 256},
    "turns": {"block_m": 128, "block_n": 192, "block_k": 64, "num_stages": 4, "threads": 256},
    "turns_of_64": {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 5, "threads": 256},
}
SHAPES = {
    "wide": (3000, 2312, 520),
    "tall": (4096, 2048, 1024),
    "one_group": (2000, 1992, 264),
    "swapped": (8, 9000, 520),
    "swapped_two": (104, 9000, 1032),
    "turns": (3000, 2312, 520),
    "turns_of_64": (2000, 3992, 264),
}


def schedule(tile, **fields):
    variant = "ping_pong" if tile.startswith("turns") else "warp_specialized"
    return GemmSchedule(**{**TILES[tile], **fields}, variant=variant)


def cases():
    """Yield spec, schedule and a name."""
    shared = {tile: shape for tile, shape in SHAPES.items() if not tile.startswith("turns")}
    for (tile, shape), layout in zip(
        [*shared.items()] * 4, [letters for letters in LAYOUTS for _ in shared], strict=True
    ):
        chain = CHAINS["bias_gelu"] if tile == "wide" else CHAINS["bias_gelu_store"]
        stages = {"num_stages": 2} if tile in ("wide", "tall") else {}
        yield gemm(shape, chain, layout), schedule(tile, **stages), f"{tile}-{layout}"
    for name, chain in OPS.items():
        for tile in ("one_group", "swapped"):
            for numerics in ("fused", "eager"):
                spec = gemm(SHAPES[tile], chain, "nt", "float16", numerics=numerics)
                yield spec, schedule(tile, num_stages=2), f"{name}-{tile}-{numerics}"
    for tile in ("wide", "swapped_two"):
        m, _, _ = SHAPES[tile]
        for order in (None, tg.Rasterization(5), tg.Rasterization(3, "column")):
            spec = gemm((m, 5000, 136), CHAINS["bias_residual"], "nt")
            yield spec, schedule(tile, num_stages=3, rasterization=order), f"{tile}-{order}"
        direct = schedule(tile, epilogue_path="direct")
        yield gemm((m, 1000, 512), CHAINS["bias_gelu"], "nt"), direct, f"{tile}-direct"
        short = gemm((m, 9000, 64), CHAINS["none"], "tn")
        yield short, schedule(tile, num_stages=2), f"{tile}-one_step"
    for tile in ("one_group", "swapped"):
        m, _, _ = SHAPES[tile]
        spec = gemm((m, 1000, 500), CHAINS["bias_gelu"], "nt", "float32", compute="tf32")
        yield spec, schedule(tile, block_k=32), f"{tile}-tf32"
        odd = gemm((m - 1, 1001, 512), CHAINS["bias_residual"], "nt", "float16")
        yield odd, schedule(tile), f"{tile}-odd_rows"


def turns():
    """Yield the same of ``ping_pong``."""
    chains = {
        "none": (),
        "gelu": (tg.Bias(), tg.Gelu()),
        "rows": (tg.Bias("m"), tg.Relu(), tg.Scale()),
        "residual": (tg.Bias(), tg.Residual()),
        "gate": (tg.Gelu(), tg.Multiply(), tg.Bias()),
        "store": (tg.Store("pre", "float32"), tg.Gelu(), tg.Store("mid"), tg.Bias()),
    }
    for (name, chain), layout, tile in product(chains.items(), LAYOUTS, ("turns", "turns_of_64")):
        narrow = {"block_n": 128} if name in ("residual", "gate", "store") else {}
        stages = {"num_stages": 2} if name == "store" else {}
        dtype = "float16" if layout in ("nn", "tt") else "bfloat16"
        asked = schedule(tile, **narrow, **stages)
        yield gemm(SHAPES[tile], chain, layout, dtype), asked, f"{tile}-{name}-{layout}"
    m, n, _ = SHAPES["turns"]
    yield gemm((m, n, 520), (tg.Bias(), tg.Gelu("tanh")), "nt"), schedule("turns"), "turns-tanh"
    for order in (None, tg.Rasterization(5), tg.Rasterization(3, "column")):
        asked = schedule("turns", block_n=160, rasterization=order)
        yield gemm((m, 5000, 136), (tg.Bias(), tg.Residual()), "nt"), asked, f"turns-{order}"
    yield gemm((m, 9000, 64), (), "tn"), schedule("turns", num_stages=2), "turns-one_step"
    direct = schedule("turns", epilogue_path="direct")
    yield gemm((m, 1000, 512), (), "nt"), direct, "turns-direct"
    tf32 = gemm((m, 1000, 500), (tg.Bias(),), "nt", "float32", compute="tf32")
    yield tf32, schedule("turns_of_64", block_k=32), "turns_of_64-tf32"
    yield gemm((m - 1, 1001, 512), (), "nt"), schedule("turns_of_64"), "turns_of_64-odd_rows"


CASES = [*cases(), *turns()]
DYNAMIC = {
    tile: gemm((tg.dyn("m", hint=hint), 1032, 520), CHAINS["bias_residual"], layout)
    for tile, hint, layout in (
        ("wide", 4096, "nt"),
        ("swapped", 16, "nn"),
        ("turns_of_64", 4096, "nn"),
    )
}


def program_of(spec, asked):
    return tg.build(spec, target="sm_90a", schedule=asked)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compile everything the module runs, on all cores."""
    programs = [program_of(spec, asked) for spec, asked, _ in CASES]
    programs += [program_of(spec, schedule(tile)) for tile, spec in DYNAMIC.items()]
    compile_all(programs)


@pytest.mark.parametrize(
    ("spec", "asked"), [case[:2] for case in CASES], ids=[name for *_, name in CASES]
)
def test_values(spec, asked):
    program = program_of(spec, asked)
    assert program.geometry.specialized
    check(spec, program.compile())


@pytest.mark.parametrize("tile", DYNAMIC)
def test_one_kernel_serves_every_m(tile):
    kernel = program_of(DYNAMIC[tile], schedule(tile)).compile()
    for m in (0, 1, 15, 16, 17, 63, 64, 65, 127, 129, 1000, 4096):
        check(DYNAMIC[tile], kernel, seed=m, m=m)
