"""Programs whose sizes depend on data that the host knows: ``python value_programs.py DEVICE`` prints all of the sizes
as JSON. They are the same on the GPU and on the CPU."""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

device = sys.argv[1]
PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


def tensor(values, **options):
    return torch.tensor(values, **options).to(device)


@program
def packed_attention():
    lengths = tensor([5, 9, 3])
    ends = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    x = torch.randn(int(ends[-1]), 2, 8, device=device, requires_grad=True)
    parts = [x[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    outs = [F.scaled_dot_product_attention(*[p.transpose(0, 1)] * 3) for p in parts]
    torch.cat([o.transpose(0, 1) for o in outs]).sum().backward()
    return [list(o.shape) for o in outs] + [lengths.max().item(), list(x.grad.shape)]


@program
def seeds_of_64_bits():
    """torchtitan sends its ranks a seed as bytes, and reads it as one number."""
    seed = tensor([1, 2, 3, 4, 5, 6, 7, 200], dtype=torch.uint8).view(torch.uint64)
    large = tensor(2**63 + 5, dtype=torch.uint64)
    small = tensor(2**53 + 1, dtype=torch.uint64)
    on_host = torch.tensor(2**63 + 7, dtype=torch.uint64)
    try:
        overflow = int(large)
    except RuntimeError as error:
        overflow = str(error)
    return [seed.item(), seed.tolist(), large.item(), overflow, int(small), small.item(), on_host.item()]


@program
def padding_free_positions():
    positions = tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3]])
    flat = positions.flatten()
    starts = (flat == 0).nonzero().flatten()
    ends = torch.cat((starts, tensor([flat.numel()])))
    return [ends.tolist(), ends.diff().max().item(), (positions.max() + 1).item()]


@program
def label_mask():
    labels = tensor([[1, -100, 2, 3], [-100, -100, 4, 5]])
    hidden = torch.randn(2, 4, 6, device=device, requires_grad=True)
    kept = hidden[labels != -100]
    kept = kept * 2
    kept.sum().backward()
    changed = hidden.detach().clone()
    changed[labels == -100] = changed[labels == -100] * 2
    return [list(kept.shape), list(hidden.grad.shape), (labels != -100).sum().item(), list(changed.shape)]


@program
def hard_negatives():
    positive = tensor([0, 1, 0, 0, 1, 0, 0, 0, 0, 0]).bool()
    loss = torch.randn(10, device=device)
    count = min(int(3 * positive.sum()), int((~positive).sum()))
    worst = loss[~positive].topk(count).values
    return [list(worst.shape), list(loss[positive].shape)]


@program
def detection():
    boxes = tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [0, 0, 9, 10], [21, 20, 30, 31]])
    scores = tensor([0.9, 0.8, 0.7, 0.95, 0.6])
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order = scores.argsort(descending=True)
    kept = []
    while order.numel() > 0:
        first, rest = order[0], order[1:]
        kept.append(first.item())
        low = torch.maximum(boxes[first, :2], boxes[rest, :2])
        high = torch.minimum(boxes[first, 2:], boxes[rest, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        order = rest[shared / (area[first] + area[rest] - shared) <= 0.5]
    return [kept, (area > 90).nonzero().flatten().tolist()]


@program
def detection_by_torchvision():
    from torchvision.ops import batched_nms, box_iou, nms, remove_small_boxes

    boxes = tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [0, 0, 1, 10], [21, 20, 30, 31]])
    scores = tensor([0.9, 0.8, 0.7, 0.95, 0.6])
    matched = box_iou(boxes, boxes[:2]).max(1).values > 0.5
    return [
        nms(boxes, scores, 0.5).tolist(),
        batched_nms(boxes, scores, tensor([0, 1, 0, 1, 0]), 0.5).tolist(),
        remove_small_boxes(boxes, 2.0).tolist(),
        list(boxes[matched].shape),
    ]


@program
def ctc():
    logits = torch.randn(50, 3, 20, device=device, requires_grad=True).log_softmax(-1)
    targets = torch.randint(1, 20, (3, 30)).to(device)
    lengths, target_lengths = tensor([50, 40, 31]), tensor([30, 20, 10])
    F.ctc_loss(logits, targets, lengths, target_lengths).backward()
    return [lengths.cpu().tolist(), targets[:, : int(target_lengths.max())].shape[1]]


@program
def embedding_bags():
    counts = tensor([[2, 0, 1], [0, 0, 3]])
    rows, words = counts.nonzero(as_tuple=True)
    starts = torch.searchsorted(rows, torch.arange(2).to(device))
    bags = F.embedding_bag(words, torch.randn(3, 4, device=device), starts)
    return [rows.tolist(), words.tolist(), list(bags.shape), counts.argmax(1).tolist()]


@program
def mixture_of_experts():
    chosen = tensor([[0, 1], [2, 1], [1, 3], [1, 0]])
    tokens = torch.randn(4, 8, device=device)
    order = chosen.flatten().argsort(stable=True)
    sizes = torch.bincount(chosen.flatten(), minlength=4)
    parts = tokens.repeat_interleave(2, 0)[order].split(sizes.tolist())
    hit = F.one_hot(chosen, 4).permute(2, 1, 0)
    rows = [torch.where(hit[i])[1].tolist() for i in hit.sum((1, 2)).gt(0).nonzero().flatten().tolist()]
    return [[list(p.shape) for p in parts], rows]


@program
def curriculum():
    lengths = tensor([3, 8, 5, 12, 7])
    made = []
    for step in range(1, 4):
        allowed = lengths <= 4 * step
        batch = lengths[allowed]
        made.append(list(torch.zeros(batch.numel(), int(batch.max()), device=device).shape))
    return made


@program
def loss_scale():
    scale, growth = tensor(1024.0), tensor(0, dtype=torch.int32)
    seen = []
    for step in range(6):
        overflow = tensor(1.0 if step == 3 else 0.0)
        torch._amp_update_scale_(scale, growth, overflow, 2.0, 0.5, 2)
        seen.append(scale.item())
    return seen


@program
def early_stopping():
    patience, best = tensor(0), tensor(10)
    for step in range(100):
        value = tensor([9, 8, 8, 8, 8, 7])[step % 6]
        better = value < best
        best = torch.where(better, value, best)
        patience = torch.where(better, torch.zeros_like(patience), patience + 1)
        if patience >= 3:
            break
    return [step, best.item()]


@program
def averages_with_warm_up():
    step, decays = torch.zeros((), device=device), []
    for _ in range(3):
        step += 1
        decays.append(round(torch.minimum((1 + step) / (10 + step), tensor(0.999)).item(), 6))
    return decays


@program
def clipping():
    gradient = tensor([-3.0, 0.5, 2.0])
    parameter = nn.Parameter(torch.zeros(3, device=device))
    parameter.grad = gradient.clone()
    nn.utils.clip_grad_value_([parameter], 1.0)
    return [parameter.grad.tolist(), (parameter.grad.abs() == 1).sum().item()]


@program
def first_gradient():
    seen = []

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(torch.equal(gradient, torch.tensor(1.0, device=gradient.device)))
            return gradient.expand(4)

    x = torch.randn(4, device=device, requires_grad=True)
    Loss.apply(x).backward()
    (Loss.apply(x) / 2).backward()
    return seen


@program
def nested_tensors():
    values, offsets = torch.randn(8, 4, device=device), tensor([0, 3, 8])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    given = [torch.randn(2, 4, device=device), torch.randn(5, 4, device=device)]
    made = torch.nested.as_nested_tensor(given, layout=torch.jagged)
    return [
        [list(part.shape) for part in (nested * 2).unbind()],
        [list(part.shape) for part in made.unbind()],
        made.offsets().diff().tolist(),
    ]


@program
def inside_modes_and_subclasses():
    class Through(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    class Around(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, device=inner.device
            )
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            args = [a.inner if isinstance(a, cls) else a for a in args]
            return cls(function(*args, **(kwargs or {})))

    ends = tensor([0, 3, 8])
    with Through():
        lengths = ends.diff()
    more = Around(ends) + 1
    more.add_(2)
    return [lengths.tolist(), more.inner.tolist()]


@program
def forms_of_one_memory():
    """Views of the same memory differ in shape, order, place and type; each sees what the others write."""
    x = tensor([[1, 2, 3], [4, 5, 6]])
    flat, row, column = x.view(-1), x[1], x[:, 1]
    views = [x, flat, flat[:3], flat[3:], row, column, flat[1::2], x.t(), x.view(torch.int32), x]
    before = [(view + 0).tolist() for view in views]
    row += 10
    column.mul_(2)
    flat[1::2][0] = -1
    flat[3:].sub_(flat[:3])
    after = [(view + 0).tolist() for view in views]
    x.t_()
    x.add_(1)
    x.unsqueeze_(0)
    turned = [(x * 1).tolist(), x.squeeze_().sum(0).tolist(), (flat + 0).tolist()]
    numbers = tensor([1 + 2j, 3 - 1j])
    parts = [(part + 0).tolist() for part in (numbers.real, numbers.imag, torch.view_as_real(numbers))]
    return [before, after, turned, parts]


@program
def one_number_everywhere():
    """A fill is kept as one number, until a part of it is written."""
    ones, zero = torch.ones(4, device=device), torch.zeros((), device=device)
    read = [(ones * 2).tolist(), (ones[:2] + ones[2:]).tolist(), (zero + 1).tolist()]
    ones[:2].add_(1)
    zero.add_(3)
    written = [(ones * 2).tolist(), (ones.view(2, 2) + 0).tolist(), (zero + 1).tolist(), zero.item()]
    zero.copy_(ones[0])
    ones.zero_()
    return [read, written, (zero + ones).tolist(), (ones + 0).tolist()]


@program
def memory_that_is_exchanged():
    """A tensor that is set to another one's memory leaves its own to its views."""
    taken, other = tensor([1, 2, 3]), tensor([7, 8, 9])
    view = taken.view(3)
    first = [(taken + 0).tolist(), (view + 0).tolist()]
    taken.set_(other)
    taken.add_(1)
    return [first, (taken + 0).tolist(), (other + 0).tolist(), (view + 0).tolist()]


@program
def results_of_several_and_of_parts():
    x, rows = tensor([[3, 1], [2, 5], [4, 0]]), tensor([2, 0])
    mask = tensor([True, False, True])
    sorted_, order = x[:, 0].sort()
    halves = torch.unsafe_chunk(x, 3)
    halves = [(half + 0).tolist() for half in halves]
    chosen = [x[rows].tolist(), x[mask].tolist(), x[rows, 1].tolist(), x[None, mask][0].tolist()]
    x[0] = 9
    return [
        [sorted_.tolist(), order.tolist(), halves, chosen, (x + 0).tolist()],
        [(mask & ~mask).tolist(), (mask | (x[:, 0] > 100)).tolist(), mask.logical_and_(mask).tolist()],
        [x.float().to(torch.int32).tolist(), x.t().to(torch.float16).tolist(), x.t().clone().tolist()],
        [
            (x + 0.5).tolist(),
            (x * 2).tolist(),
            (x + True).tolist(),
            (0.5 - x).tolist(),
            (x.float() * 2).tolist(),
        ],
    ]


@program
def nothing():
    numbers, unknown = tensor([3, 1]), torch.randn(4, 8, device=device) @ torch.randn(8, 4, device=device)
    none = unknown[:0]
    return [
        [bool((none > 0).all()), bool((none > 0).any()), none.sum().item(), torch.equal(none, none.clone())],
        [numbers[2:].tolist(), list(none[none[:, 0] > 0].shape), torch.cat([numbers[:0], numbers]).tolist()],
    ]


@program
def sizes_of_all_kinds():
    x = tensor([3, 1, 3, 0, 7])
    found, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    y = torch.zeros(8, dtype=torch.long, device=device)
    y[x] = 1
    y[2:4].add_(5)
    return [
        [found.tolist(), inverse.tolist(), counts.tolist(), x.unique_consecutive().tolist()],
        [
            torch.repeat_interleave(x, x).shape[0],
            x.repeat_interleave(x, 0).shape[0],
            torch.repeat_interleave(x).tolist(),
        ],
        [list(F.one_hot(x).shape), torch.bincount(x).tolist(), torch.histc(x.float(), 4).tolist()],
        [
            x.masked_select(x > 1).tolist(),
            x[x > 1].tolist(),
            x.argwhere().tolist(),
            x.topk(2).values.tolist(),
        ],
        [y.tolist(), x.sort().values.tolist(), x.flip(0).tolist(), torch.isin(x, tensor([3, 7])).tolist()],
        [bool((x > 0).any()), bool((x >= 0).all()), torch.tril_indices(3, 3, device=device).tolist()],
        [
            torch.arange(x.max() + 1).shape[0],
            x.float().mean().item(),
            x.view(torch.int32)[0].item(),
            x.cpu().tolist(),
        ],
        [
            x.to(torch.bfloat16).tolist(),
            x[None].expand(2, 5).sum().item(),
            x.cumsum(0)[-1].item(),
            x.numpy(force=True).tolist(),
        ],
    ]


if __name__ == "__main__":
    if device == "cuda":  # something to train, or nothing would be captured
        layer = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    print(json.dumps({function.__name__: function() for function in PROGRAMS}), flush=True)
    if device == "cuda":
        for _ in range(3):
            layer(torch.randn(4, 4, device="cuda")).sum().backward()
            optimizer.step()
