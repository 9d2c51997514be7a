"""Operands of both decodes that show faults: any lengths, pages out of order, NaN beside keys."""

import torch

from tilegen.reference import inputs

LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 200)
SPIKES = ("first", "middle", "last")
NO_PAGE = (-1, 2**31 - 1)


def operands(spec, lengths=LENGTHS, *, room=200, seed=0, device="cpu"):
    """Return operands of a batch of sequences with so many keys; all else in the caches is NaN.

    Pages are in random order; entries of the table beyond those of a sequence are no pages. With
    pages, the last two sequences share their first one, where both fill it.
    """
    generator = torch.Generator(device).manual_seed(seed)
    page = spec.page_size
    columns = -(-room // page) if page else 0
    named = {"pages": len(lengths) * columns + 3, "kv_len": room, "kv_len_pages": columns}
    sizes = {dim.name: named.get(dim.name, len(lengths)) for dim in spec.dynamic}
    found = inputs(spec, sizes, generator)
    found["kv_lens"] = torch.tensor(lengths, dtype=torch.int32, device=device)
    names = _caches(spec)
    if page:
        found["page_table"] = _table(spec, lengths, len(found[names[0]]), columns, generator)
    used = torch.zeros(found[names[0]].shape[:2], dtype=torch.bool, device=device)
    for batch, count in enumerate(lengths):
        for first in range(0, count, page or room):
            row = int(found["page_table"][batch, first // page]) if page else batch
            used[row, : min(count - first, page or room)] = True
    for name in names:
        wide = found[name].float()
        wide[~used] = torch.nan
        found[name] = wide.to(found[name].dtype)
    return found


def _caches(spec):
    return [operand.name for operand in spec.operands if operand.name in ("k", "v", "kv")]


def _table(spec, lengths, pages, columns, generator):
    page, device = spec.page_size, generator.device
    order = torch.randperm(pages, generator=generator, device=device)
    table = torch.empty((len(lengths), columns), dtype=torch.int64, device=device)
    for batch, count in enumerate(lengths):
        own = -(-count // page)
        table[batch, :own] = order[batch * columns : batch * columns + own]
        table[batch, own:] = NO_PAGE[batch % 2]
    if len(lengths) > 1 and min(lengths[-2:]) >= page:
        table[-1, 0] = table[-2, 0]
    return table.to(torch.int32)


def spiked(spec, lengths, nats, place, **options):
    """Return operands in which one key of each sequence scores about ``nats`` above the rest."""
    found = operands(spec, lengths, **options)
    queries = found["q"].float()
    towards = queries.mean((1, 2), keepdim=True)
    towards = towards / towards.norm(dim=-1, keepdim=True)
    found["q"] = (0.1 * queries + towards).to(found["q"].dtype)
    for batch, count in enumerate(lengths):
        if count:
            key = {"first": 0, "middle": count // 2, "last": count - 1}[place]
            row, at = batch, key
            if spec.page_size:
                row = int(found["page_table"][batch, key // spec.page_size])
                at = key % spec.page_size
            cache = found[_caches(spec)[0]]
            own = 0.1 * cache[row, at].float()
            cache[row, at] = (own + towards[batch, 0].view(-1) * nats / spec.scale).to(cache.dtype)
    return found
