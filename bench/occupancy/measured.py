"""Occupancy on a phantom GPU against what a real one launched: the profiles in ``bench/gpu/results``.

    python bench/occupancy/measured.py --python PATH [RESULTS] [--folder .occupancy]

Runs the same forward passes, training steps and programs on a phantom of the same GPU, with the Python of
an environment that has the same torch, and prints three comparisons: (A) the calculator with the profiler's
own figure; (B) PyTorch's own launches, one by one; (C) the launch-mean occupancy of each profile, with the
kernels that libraries hide as the kernel model expects them, which does not know what is judged: the profile
alone, all of its model, all of similar models. What was captured stays in the folder.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from xmem.capture import Extent, PhantomMachine, capture
from xmem.devices.gpus import find_device
from xmem.occupancy.calculator import filling, kineto_percent, residency
from xmem.occupancy.kernel_data import document_of, recorded_of, shipped_document, text_of
from xmem.occupancy.kernel_model import (
    Kernel,
    KernelLaunch,
    KernelModel,
    Recorded,
    for_another_size,
)
from xmem.occupancy.launches import Known
from xmem.occupancy.launches import Launches as Launched
from xmem.occupancy.library_kernels import problem_of_call, with_library_kernels
from xmem.occupancy.limits import limits_of
from xmem.occupancy.problems import Problem
from xmem.occupancy.recorded import launches_of
from xmem.occupancy.recurrent import PERSISTENT_KERNEL, STEP_KERNEL, is_recurrent, parts_of
from xmem.trace.trace import read_trace
from xmem.validation import load_measurements
from xmem.validation.measurements import Launches

HERE = Path(__file__).parent
RESULTS = HERE.parent / "gpu" / "results" / "nvidia-h100-80gb-hbm3-torch2.11.0"
GPU = "h100"
CAPABILITY = (9, 0)
MULTIPROCESSORS = 132
KINETO_LIMIT = 48 << 10

T = TypeVar("T")

_MARKER = "spin_kernel"  # of measured_jobs.py
OWN = re.compile(r"at::|at_cuda_detail|pytorch_flash|PyTorchMemEffAttention|triton")
# Kernels that come before and after the one that does a library call's work.
_BEFORE = re.compile(
    r"nchwToNhwc|AddPadding|precompute_indices|init_device_workspace|compute_dot_do_o|scal_kernel"
    r"|generateWinogradTilesKernel|initialize"
)
_AFTER = re.compile(
    r"nhwcToNchw|splitKreduce|post_execute|convert_dq|reduce_head|epilogue::impl|reduce_wgrad|_reduce_kernel"
)
# Recurrent networks launch the same at each step: more steps say nothing more. Those few that they launch for
# all steps at once are fewer than this.
_KEPT_STEPS = 64
_OF_STEPS = re.compile(f"{STEP_KERNEL}|{PERSISTENT_KERNEL}")
# Models that share most of their layers: left out together where that is asked for.
_FAMILIES = {
    "vgg": "VGG",
    "resnet": "ResNet",
    "regnet": "RegNet",
    "clip": "CLIP",
    "vit": "ViT",
    "bert": "BERT",
    "gpt": "decoders",
    "opt": "decoders",
    "decoder": "decoders",
    "qwen": "Qwen",
    "convnext": "ConvNeXt",
    "attention": "attention",
}


@dataclass(frozen=True)
class Launch:
    """A kernel that really ran."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared_bytes: int
    operator: str
    duration_ns: int
    percent: int

    @property
    def shape(self) -> tuple[Any, ...]:
        """What a launch of the phantom has, too."""
        return self.name, self.grid, self.block, self.registers, self.shared_bytes


@dataclass(frozen=True)
class Profile:
    """A profile, and the launches of the same work on the phantom."""

    measured: Launches
    real: tuple[Launch, ...]
    phantom: Launched

    @property
    def kind(self) -> str:
        """Which of the three."""
        config = self.measured.config
        return "program" if "program" in config else "training" if "family" in config else "forward"

    @property
    def model(self) -> str:
        """The name without its spelling: VGG-16 is VGG16."""
        config = self.measured.config
        if "program" in config:
            return str(config["program"])
        name = str(config["model"])
        name = name.rpartition("/")[2] if "family" in config else name  # whose repository it is in
        return re.sub("[^a-z0-9]", "", name.lower())

    @property
    def family(self) -> str:
        """Models that share their layers."""
        return next((of for part, of in _FAMILIES.items() if part in self.model), self.model)


def real_launches(measured: Launches) -> tuple[Launch, ...]:
    """Return the launches of a profile, in order."""
    columns = {name: column.tolist() for name, column in measured.launches().items()}
    return tuple(
        Launch(
            measured.kernels[kernel],
            (columns["grid_x"][row], columns["grid_y"][row], columns["grid_z"][row]),
            (columns["block_x"][row], columns["block_y"][row], columns["block_z"][row]),
            columns["registers"][row],
            columns["shared_bytes"][row],
            str((measured.operators[columns["operator"][row]] or {}).get("name", "")),
            columns["duration_ns"][row],
            columns["occupancy_percent"][row],
        )
        for row, kernel in enumerate(columns["kernel"])
    )


def read_profiles(results: Path, python: Path, folder: Path) -> list[Profile]:
    """Read the profiles, and run on the phantom what was not run before."""
    measured = [
        found
        for found in load_measurements(results)
        if isinstance(found, Launches) and found.part == "occupancy"
    ]
    measured = [found for found in measured if found.outcome == "done"]
    groups: dict[str, list[Launches]] = defaultdict(list)
    for found in measured:
        config = found.config
        kind = "programs" if "program" in config else config.get("family", f"forward-{config['batch']}")
        groups[str(kind)].append(found)
    profiles = []
    for name, group in groups.items():
        for found, phantom in zip(group, _on_phantom(name, group, python, folder), strict=True):
            profiles.append(Profile(found, real_launches(found), phantom))
    return profiles


def _on_phantom(name: str, group: Sequence[Launches], python: Path, folder: Path) -> list[Launched]:
    folder.mkdir(parents=True, exist_ok=True)
    jobs, trace = folder / f"{name}.json", folder / f"{name}.trace.json.gz"
    text = json.dumps([dict(found.config) for found in group])
    if not jobs.exists() or jobs.read_text(encoding="utf-8") != text:
        trace.unlink(missing_ok=True)
        jobs.write_text(text, encoding="utf-8")
    return marked_launches([str(python), str(HERE / "measured_jobs.py"), str(jobs)], trace)


def marked_launches(command: Sequence[str], trace: Path) -> list[Launched]:
    """Capture a command on the phantom GPU unless its trace is there; return the launches between markers."""
    if not trace.exists():
        machine = PhantomMachine(device=find_device(GPU), launches=True)
        capture(command, trace, mode="phantom", machine=machine, extent=Extent(until_end=True))
    return _between_markers(launches_of(read_trace(trace)))


def _between_markers(launches: Launched) -> list[Launched]:
    """Return the launches between a single marker and the next two."""
    names = np.array([_MARKER in text for text in launches.strings])
    at = np.flatnonzero(names[launches.name])
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    begins, ends = runs[::2], runs[1::2]
    return [launches.rows(slice(int(a[0]) + 1, int(b[0]))) for a, b in zip(begins, ends, strict=True)]


# --- A ------------------------------------------------------------------------------------------


def calculator(profiles: Iterable[Profile]) -> tuple[int, int, int]:
    """Return recorded kernels, those whose figure by the profiler differs from ours, those above 48 KiB."""
    limits = limits_of(CAPABILITY)
    launches = [launch for profile in profiles for launch in profile.real]
    grid, block = (
        np.array([getattr(each, of) for each in launches]).prod(axis=1) for of in ("grid", "block")
    )
    registers, shared, percent = (
        np.array([getattr(launch, of) for launch in launches])
        for of in ("registers", "shared_bytes", "percent")
    )
    held = residency(limits, block, registers, shared, like_kineto=True)
    ours = kineto_percent(limits, MULTIPROCESSORS, block, held, grid)
    return len(launches), int((ours != percent).sum()), int((shared > KINETO_LIMIT).sum())


# --- B ------------------------------------------------------------------------------------------


def own_launches(
    profile: Profile, names: frozenset[str]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return PyTorch's own launches, of the GPU and of the phantom."""
    real = [launch.shape for launch in profile.real if launch.name in names or OWN.search(launch.name)]
    found = profile.phantom
    return real, [shape for shape in phantom_shapes(found) if shape]


def phantom_shapes(found: Launched) -> list[tuple[Any, ...]]:
    """Return a row per launch of the phantom; an empty one for a library call."""
    return [
        (
            found.text(int(found.name[row])),
            tuple(found.grid[row].tolist()),
            tuple(found.block[row].tolist()),
            int(found.registers[row]),
            int(found.shared_bytes[row]),
        )
        if found.library_call[row] < 0
        else ()
        for row in range(len(found))
    ]


def own_names(profiles: Iterable[Profile]) -> frozenset[str]:
    """Return the kernels that the phantom knows by name, of all profiles."""
    return frozenset(shape[0] for profile in profiles for shape in phantom_shapes(profile.phantom) if shape)


def equal_in_order(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """Return how many launches are equal, in order."""
    if ours == theirs:
        return len(ours)
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks())


# --- C ------------------------------------------------------------------------------------------


def called_kernels(profile: Profile) -> list[tuple[int, list[Launch]]]:
    """Return each library call of a profile (its row of ``library_calls``) with the kernels that it launched.

    Between two of PyTorch's own launches lie the kernels of the calls between them; several calls are told
    apart by operator, and within one by what comes before and after a library's main kernel. Where that does
    not add up, the calls are left out.
    """
    phantom = profile.phantom
    shapes = phantom_shapes(phantom)
    found: list[tuple[int, list[Launch]]] = []
    calls: list[int] = []
    at = 0
    for row, shape in enumerate([*shapes, None]):
        if shape == ():
            calls.append(row)
            continue
        kernels: list[Launch] = []
        while at < len(profile.real) and (shape is None or profile.real[at].shape != shape):
            kernels.append(profile.real[at])
            at += 1
        at += 1
        found += _shared_out(phantom, calls, kernels)
        calls = []
    return found


def _shared_out(
    phantom: Launched, rows: Sequence[int], kernels: Sequence[Launch]
) -> list[tuple[int, list[Launch]]]:
    """Return the kernels between two launches by the calls that made them."""
    by_operator = _runs(rows, lambda row: phantom.text(int(phantom.operator[row])))
    runs = _runs(kernels, lambda kernel: kernel.operator)
    if len(by_operator) != len(runs):
        if len(rows) != len(chunks := _by_main_kernel(kernels)):
            return []
        return [(int(phantom.library_call[row]), chunk) for row, chunk in zip(rows, chunks, strict=True)]
    found = []
    for of_run, launched in zip(by_operator, runs, strict=True):
        chunks = [launched] if len(of_run) == 1 else _by_main_kernel(launched)
        if len(chunks) == len(of_run):
            found += [
                (int(phantom.library_call[row]), chunk) for row, chunk in zip(of_run, chunks, strict=True)
            ]
    return found


def _runs(items: Sequence[T], key: Callable[[T], str]) -> list[list[T]]:
    runs: list[list[T]] = []
    last = None
    for item in items:
        if not runs or key(item) != last:
            runs.append([])
        last = key(item)
        runs[-1].append(item)
    return runs


def _by_main_kernel(kernels: Sequence[Launch]) -> list[list[Launch]]:
    """Return kernels as calls: those before, one that does the work, those after."""
    chunks: list[list[Launch]] = []
    has_main = True
    for kernel in kernels:
        before, after = _BEFORE.search(kernel.name), _AFTER.search(kernel.name)
        if not after and has_main:
            chunks.append([])
            has_main = False
        if not chunks:
            return []
        chunks[-1].append(kernel)
        has_main = has_main or not before
    return chunks


def recorded(profile: Profile) -> list[Recorded]:
    """Return what the kernel model can be made of."""
    distinct: dict[tuple[int, tuple[Any, ...]], list[Launch]] = {}
    for call, kernels in called_kernels(profile):
        distinct.setdefault((call, tuple(kernel.shape for kernel in kernels)), kernels)
    found = []
    for (call, _), kernels in distinct.items():
        problem = problem_of_call(profile.phantom, call)
        if problem is None or not kernels:
            continue
        total = sum(kernel.duration_ns for kernel in kernels) or 1
        launched = tuple(
            KernelLaunch(
                Kernel(kernel.name, int(np.prod(kernel.block)), kernel.registers, kernel.shared_bytes),
                int(np.prod(kernel.grid)),
                round(kernel.duration_ns / total, 2),
            )
            for kernel in kernels
        )
        found += [_of_few_steps(problem, launched), *_products_of_steps(problem, launched)]
    return found


def _of_few_steps(problem: Problem, launches: tuple[KernelLaunch, ...]) -> Recorded:
    if is_recurrent(problem) and problem.shapes[-1][0] > _KEPT_STEPS:
        few = replace(problem, shapes=(*problem.shapes[:-1], (_KEPT_STEPS,)))
        problem, launches = few, for_another_size(launches, few, problem)
    return Recorded(problem, CAPABILITY, MULTIPROCESSORS, launches)


def _products_of_steps(problem: Problem, launches: Sequence[KernelLaunch]) -> list[Recorded]:
    """Return the products of a recurrent network, where what it launched is what its algorithm does."""
    parts = parts_of(problem) if is_recurrent(problem) else ()
    products = [part for part in parts if part.work is not None]
    of_own = sum(part.times for part in parts if part.work is None)
    kernels = Counter(launch for launch in launches if not _OF_STEPS.search(launch.kernel.name))
    if not products or len(launches) - kernels.total() != of_own:
        return []
    wanted: Counter[Problem] = Counter()
    for part in products:
        wanted[part.work] += part.times
    # Those of each step are the most; the inputs' come layer by layer.
    found = {}
    often, count = wanted.most_common(1)[0]
    if len(products) > problem.shapes[2][0]:
        if (launch := next((one for one, times in kernels.items() if times == count), None)) is None:
            return []
        found[often] = launch
        del wanted[often], kernels[launch]
    in_order = list(kernels.elements())
    if len(in_order) != wanted.total():
        return []
    for product, times in wanted.items():
        of_product, in_order = in_order[:times], in_order[times:]
        if len(set(of_product)) == 1:
            found[product] = of_product[0]
    return [
        Recorded(product, CAPABILITY, MULTIPROCESSORS, (replace(launch, share=1.0),))
        for product, launch in found.items()
    ]


def launch_mean(threads: Any, registers: Any, shared: Any, blocks: Any) -> float:
    """Return the mean occupancy of launches, all multiprocessors counted."""
    limits = limits_of(CAPABILITY)
    held = residency(limits, threads, registers, shared)
    return float(filling(limits, MULTIPROCESSORS, held, blocks).steady.mean())


def true_mean(profile: Profile) -> float:
    """Return it of what ran."""
    grid, block = (
        np.array([getattr(each, of) for each in profile.real]).prod(axis=1) for of in ("grid", "block")
    )
    registers, shared = (
        np.array([getattr(launch, of) for launch in profile.real]) for of in ("registers", "shared_bytes")
    )
    return launch_mean(block, registers, shared, grid)


def predicted_mean(profile: Profile, model: KernelModel) -> tuple[float, int, int]:
    """Return it as the phantom and the model have it, with the numbers of modelled and unknown launches."""
    found = with_library_kernels(profile.phantom, CAPABILITY, MULTIPROCESSORS, model)
    known = found.rows(found.known != Known.UNKNOWN)
    mean = launch_mean(known.threads, known.registers, known.shared_bytes, known.blocks)
    return mean, int((found.known == Known.MODELLED).sum()), int((found.known == Known.UNKNOWN).sum())


@dataclass(frozen=True)
class Judged:
    """A profile's launch mean and what was predicted of it."""

    profile: Profile
    truth: float
    predicted: float
    modelled: int
    unknown: int

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.truth - 1


def judge(
    profiles: Sequence[Profile], public: Sequence[Recorded], group: Callable[[Profile], str]
) -> list[Judged]:
    """Return each profile, judged by a model that knows nothing of the profiles of its group."""
    known = {id(profile): recorded(profile) for profile in profiles}
    judged = []
    for name in sorted({group(profile) for profile in profiles}):
        others = [record for each in profiles if group(each) != name for record in known[id(each)]]
        model = KernelModel([*public, *others])
        for profile in profiles:
            if group(profile) == name:
                mean, modelled, unknown = predicted_mean(profile, model)
                judged.append(Judged(profile, true_mean(profile), mean, modelled, unknown))
    return judged


# --- the report ------------------------------------------------------------------------------------------


def report(profiles: Sequence[Profile], public: Sequence[Recorded]) -> dict[str, Any]:
    """Print the comparisons; returns the summary of the third."""
    kernels, differ, above = calculator(profiles)
    print(f"A. calculator and profiler: {kernels:,} kernels, {differ} differ, {above:,} above 48 KiB")
    names = own_names(profiles)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for profile in profiles:
        real, ours = own_launches(profile, names)
        count = counts[profile.kind]
        equal = equal_in_order(ours, real)
        count.update(profiles=1, exact=int(ours == real), real=len(real), phantom=len(ours), equal=equal)
        if ours != real:
            print(f"   {_title(profile)}: {equal} of {len(real)}, phantom {len(ours)}")
    print("B. PyTorch's own launches: name, grid, block, registers, shared memory")
    for kind, count in counts.items():
        share = count["equal"] / max(count["real"], count["phantom"], 1)
        print(
            f"   {kind:10}{count['equal']:7,} of {count['real']:7,} equal ({share:.2%}), "
            f"{count['exact']} of {count['profiles']} profiles wholly"
        )
    summary = {}
    ways: Mapping[str, Callable[[Profile], str]] = {
        "profile": lambda profile: profile.measured.key,
        "model": lambda profile: profile.model,
        "family": lambda profile: profile.family,
    }
    for way, group in ways.items():
        judged = judge(profiles, public, group)
        print(f"C. launch_mean, one {way} left out")
        for row in judged if way == "model" else []:
            print(
                f"   {_title(row.profile):44}{row.truth:8.4f}{row.predicted:8.4f}{row.error:+8.1%}"
                f"{row.modelled:7,} modelled{row.unknown:5,} unknown"
            )
        summary[way] = _by_kind(judged)
        for kind, errors in summary[way].items():
            said = ", ".join(f"{name} {value:.1%}" for name, value in errors.items() if name != "profiles")
            print(f"   {kind:12}{errors['profiles']:4.0f} profiles: {said}")
    return summary


def _by_kind(judged: Iterable[Judged]) -> dict[str, dict[str, float]]:
    """Return the relative errors by kind; ``all known`` are the profiles without an unknown call."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in judged:
        for kind in (row.profile.kind, "all", *(["all known"] if not row.unknown else [])):
            errors[kind].append(abs(row.error))
    return {
        kind: {
            "profiles": len(of),
            "mean": round(float(np.mean(of)), 4),
            "median": round(float(np.median(of)), 4),
            "most": round(max(of), 4),
        }
        for kind, of in errors.items()
    }


def _title(profile: Profile) -> str:
    config = profile.measured.config
    said = [str(config[key]) for key in ("program", "model", "batch", "precision") if key in config]
    return " ".join([*said, *(["channels last"] if config.get("channels_last") else [])])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    parser.add_argument(
        "--python", required=True, type=Path, help="of an environment with the measured torch"
    )
    parser.add_argument("--write", type=Path, help="put the records and the errors into this file of kernels")
    parser.add_argument("--folder", type=Path, default=Path(".occupancy"), help="for what was captured")
    arguments = parser.parse_args()
    profiles = read_profiles(arguments.results, arguments.python, arguments.folder)
    found = report(profiles, public_records())
    if arguments.write:
        write(arguments.write, profiles, found)


def write(path: Path, profiles: Sequence[Profile], errors: Mapping[str, Any]) -> None:
    """Put what was measured behind the records of public traces, and its errors onto the card."""
    document = shipped_document()
    about = {
        **document["card"],
        "measured": {
            "what": "bench/gpu/results: profiles of the measuring kit, with the calls of a phantom GPU",
            "how": "bench/occupancy/measured.py --write",
            "environment": dict(profiles[0].measured.environment),
            "profiles": len(profiles),
            "launch_mean_errors": dict(errors),
        },
    }
    own = [record for profile in profiles for record in recorded(profile)]
    path.write_text(text_of(document_of([*public_records(), *own], about)), encoding="utf-8")


def public_records() -> list[Recorded]:
    """Return what the shipped model knows from public traces, of several GPUs."""
    document = shipped_document()
    return recorded_of({**document, "records": document["records"][: document["card"]["public_records"]]})


if __name__ == "__main__":
    main()
