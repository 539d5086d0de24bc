"""Kernels of Triton whose inputs the host knows: prints as JSON what they give, and what PyTorch gives on the CPU."""

import json

import torch
import triton
import triton.language as tl


def launch(grid, function, *arguments, **options):
    function[grid](*arguments, **options)


@triton.jit
def count_experts(routes, counts, n, block: tl.constexpr):
    tile = tl.program_id(0)
    places = tile * block + tl.arange(0, block)
    inside = places < n
    route = tl.load(routes + places, mask=inside, other=0)
    rank = tl.atomic_add(counts + route, 1, mask=inside)
    tl.store(routes + n + places, rank, mask=inside)


@triton.jit
def starts_of(counts, starts, tiles, experts: tl.constexpr, rows: tl.constexpr):
    if tl.program_id(0) == 0:
        places = tl.arange(0, experts)
        count = tl.load(counts + places)
        tl.store(starts + places, tl.cumsum(count, 0) - count)
        tl.store(starts + experts, tl.sum(count, 0))
    else:
        total = 0
        for expert in range(0, experts):
            total += tl.cdiv(tl.load(counts + expert), rows)
        tl.store(tiles, total)


@triton.jit
def sort_rows(values, n: tl.constexpr):
    places = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(values + places, tl.sort(tl.load(values + places)))


@triton.jit
def row_facts(values, best, largest, spread, columns: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(values + row * columns + tl.arange(0, columns)).to(tl.float32)
    tl.store(best + row, tl.argmax(x, 0))
    tl.store(largest + row, tl.max(x, 0))
    centred = x - tl.sum(x, 0) / columns
    tl.store(spread + row, tl.sqrt(tl.sum(centred * centred, 0) / columns).to(tl.bfloat16))


@triton.jit
def steps_to_one(values, steps):
    place = tl.program_id(0)
    x = tl.load(values + place)
    count = 0
    while x != 1:
        x = tl.where(x % 2 == 0, x // 2, 3 * x + 1)
        count += 1
    tl.store(steps + place, count)


@triton.jit
def fill_rows(target, rows, columns: tl.constexpr):
    for row in range(0, rows):
        tl.store(target + row * columns + tl.arange(0, columns), row)


@triton.jit
def hashed(values, result, n: tl.constexpr):
    places = tl.arange(0, n)
    x = tl.load(values + places).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x45D9F3B
    x = (x ^ (x >> 16)) % 1000
    tl.store(result + places, x.to(tl.int32))


@triton.jit
def copy(source, target, n: tl.constexpr):
    places = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(target + places, tl.load(source + places))


@triton.jit
def sum_of_prefix(lengths, sums, unequal: tl.constexpr):
    """Loops of different length, of instances that go different ways inside."""
    row = tl.program_id(1) * 4 + tl.program_id(0)
    total = 0
    for step in range(0, tl.load(lengths + row)):
        if step % 2 == row % 2:
            total += step
        elif unequal:
            total += 100 * row
    tl.store(sums + row, total)


@triton.jit
def total_by_the_last(parts, arrived, total, n: tl.constexpr):
    """All add one, where they all write to the same place; the last one sums up."""
    part = tl.program_id(0)
    tl.store(parts + part, part * part)
    if tl.atomic_add(arrived, 1) == n - 1:
        tl.store(total, tl.sum(tl.load(parts + tl.arange(0, n)), 0))


@triton.jit
def running_total(values, totals, done):
    """Each waits for the one before it."""
    place = tl.program_id(0)
    before = 0
    if place > 0:
        while tl.atomic_add(done + place - 1, 0) == 0:
            pass
        before = tl.load(totals + place - 1)
    tl.store(totals + place, before + tl.load(values + place))
    tl.atomic_xchg(done + place, 1)


@triton.jit
def add_to_rows(counts, columns: tl.constexpr):
    row = tl.program_id(0)
    for column in range(0, columns):
        tl.store(counts + row * columns + column, tl.load(counts + row * columns + column) + row % 3)


@triton.jit
def inverse_of_blocks(order, inverse, histogram, n: tl.constexpr):
    block, places = tl.program_id(0), tl.arange(0, n)
    chosen = tl.load(order + block * n + places)
    tl.store(inverse + block * n + chosen, places)
    counts = tl.histogram(chosen % 4, 4)
    tl.store(histogram + block * 4 + tl.arange(0, 4), counts)


def on_gpu(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device="cuda")


def expert_counts():
    routes = [(7 * i * i + i // 3) % 8 for i in range(1000)]
    memory = on_gpu(routes + [0] * 1000)
    counts = torch.zeros(8, dtype=torch.int32, device="cuda")
    launch((4,), count_experts, memory, counts, 1000, block=256)
    starts = torch.empty(9, dtype=torch.int32, device="cuda")
    tiles = torch.empty(1, dtype=torch.int32, device="cuda")
    launch(lambda _meta: (2,), starts_of, counts, starts, tiles, experts=8, rows=64)
    expected = torch.bincount(torch.tensor(routes), minlength=8)
    seen, ranks = [0] * 8, []
    for route in routes:
        ranks.append(seen[route])
        seen[route] += 1
    gives = [tiles.item(), starts.tolist(), counts.tolist(), memory[1000:].tolist()]
    ends = [0, *expected.cumsum(0).tolist()]
    return gives, [int(((expected + 63) // 64).sum()), ends, expected.tolist(), ranks]


def the_same_launches_again():
    first, expected = expert_counts()
    again, _ = expert_counts()
    return [first, again], [expected, expected]


def sorted_rows():
    values = [[(i * 37 + j * 91) % 101 - 50 for j in range(64)] for i in range(3)]
    memory = on_gpu(values)
    launch((3,), sort_rows, memory, n=64)
    return memory.tolist(), [sorted(row) for row in values]


def facts_of_rows():
    values = torch.tensor([[((i + 3) * j * 17) % 31 / 4 for j in range(32)] for i in range(4)])
    memory = values.cuda()
    best = torch.empty(4, dtype=torch.int64, device="cuda")
    largest = torch.empty(4, device="cuda")
    spread = torch.empty(4, dtype=torch.bfloat16, device="cuda")
    launch((4,), row_facts, memory, best, largest, spread, columns=32)
    expected = values.std(1, correction=0).bfloat16()
    return (
        [best.tolist(), largest.tolist(), bool((spread.cpu().float() - expected.float()).abs().max() < 0.1)],
        [values.argmax(1).tolist(), values.amax(1).tolist(), True],
    )


def loops():
    memory, steps = on_gpu([1, 2, 3, 6, 7, 27]), torch.empty(6, dtype=torch.int32, device="cuda")
    launch((6,), steps_to_one, memory, steps)
    rows = on_gpu([0] * 12)
    launch((1,), fill_rows, rows, 3, columns=4)
    return [steps.tolist(), rows.tolist()], [[0, 1, 7, 8, 16, 111], [0] * 4 + [1] * 4 + [2] * 4]


def instances_that_differ():
    lengths = [3, 0, 7, 1, 2, 5, 4, 6]
    memory, sums = on_gpu(lengths), torch.empty(8, dtype=torch.int32, device="cuda")
    launch((4, 2), sum_of_prefix, memory, sums, unequal=True)

    def of(row):
        return sum(step if step % 2 == row % 2 else 100 * row for step in range(lengths[row]))

    return sums.tolist(), [of(row) for row in range(8)]


def instances_that_meet():
    parts, counters = torch.empty(64, dtype=torch.int32, device="cuda"), on_gpu([0, 0])
    launch((64,), total_by_the_last, parts, counters, counters[1:], n=64)
    values, totals, done = on_gpu([3] * 40), on_gpu([0] * 40), on_gpu([0] * 40)
    launch((40,), running_total, values, totals, done)
    expected = [[64, sum(place * place for place in range(64))], [3 * place for place in range(1, 41)]]
    return [counters.tolist(), totals.tolist()], expected


def as_many_launches_as_a_model_has_layers():
    counts = on_gpu([0] * 4096)
    for _ in range(120):
        launch((128,), add_to_rows, counts, columns=32)
        last = counts[-32:].tolist()
    return [last, sum(counts.tolist())], [[120 * (127 % 3)] * 32, 120 * 32 * sum(r % 3 for r in range(128))]


def blocks_of_their_own():
    order = [[(5 * place + 3 * block) % 16 for place in range(16)] for block in range(6)]
    memory, inverse = on_gpu(order), torch.empty(6, 16, dtype=torch.int32, device="cuda")
    histogram = torch.empty(6, 4, dtype=torch.int32, device="cuda")
    launch((6,), inverse_of_blocks, memory, inverse, histogram, n=16)
    expected = [[row.index(place) for place in range(16)] for row in order]
    return [inverse.tolist(), histogram.tolist()], [expected, [[4] * 4] * 6]


def numbers_without_sign():
    memory, result = on_gpu(list(range(-32, 32))), torch.empty(64, dtype=torch.int32, device="cuda")
    launch((1,), hashed, memory, result, n=64)
    expected = []
    for x in range(-32, 32):
        x &= 0xFFFFFFFF
        x = (x ^ (x >> 16)) * 0x45D9F3B & 0xFFFFFFFF
        expected.append((x ^ (x >> 16)) % 1000)
    return result.tolist(), expected


def what_is_only_read_stays_known():
    """Also beside something unknown; what it writes is unknown, and gives nothing."""
    known, unknown = on_gpu([5] * 16), torch.empty(16, dtype=torch.int32, device="cuda")
    target = on_gpu([3] * 16)
    launch((1,), copy, unknown, target, n=16)
    launch((1,), copy, known, unknown, n=16)
    return [known.tolist(), unknown.tolist(), target.sum().item()], [[5] * 16, [5] * 16, 0]


def what_is_written_in_part_is_not_known():
    target = torch.empty(32, dtype=torch.int32, device="cuda")
    launch((1,), copy, on_gpu([5] * 16), target, n=16)
    before = on_gpu([1] * 32)
    launch((1,), copy, on_gpu([5] * 16), before, n=16)
    return [target.sum().item(), before.sum().item()], [0, 96]


for function in (
    expert_counts,
    the_same_launches_again,
    sorted_rows,
    facts_of_rows,
    loops,
    instances_that_differ,
    instances_that_meet,
    blocks_of_their_own,
    as_many_launches_as_a_model_has_layers,
    numbers_without_sign,
    what_is_only_read_stays_known,
    what_is_written_in_part_is_not_known,
):
    print(json.dumps([function.__name__, *function()]))
