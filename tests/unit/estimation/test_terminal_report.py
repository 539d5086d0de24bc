"""The terminal report, pinned as a reader sees it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from estimate_samples import DOES_NOT_FIT, FITS, NO_GPU
from xmem.estimation.estimate import Breakdown, CardPart, Estimate
from xmem.reports.terminal.sparkline import sparkline
from xmem.reports.terminal.summary import render

EVIDENCE_TEXT = """\
Peak          3.29 GiB reserved + 146.00 MiB CUDA context
  in blocks   3.12 GiB allocated, 3.11 GiB requested by tensors
  persistent  500.00 MiB outlives its iteration, 2.64 GiB does not
  bounds      3.11 GiB with perfect reuse, 40.00 GiB without any
Interval      3.32 GiB to 3.81 GiB, each with 0.9 confidence; 20 measured runs
              (cpu, other)
Where         iteration 1, backward
  module      GPT.head
  operator    aten::mm
  source line examples/train_gpt2.py:83
Allocated     ▁█▃
Reserved      ▁██

The number on the card
  context               146.00 MiB  █
  tensors                 3.11 GiB   █████████████████████████████
  rounding               20.00 MiB
  fragmentation         128.00 MiB                                ██
  cached                 40.00 MiB
  device peak             3.43 GiB  ████████████████████████████████

At the peak, by category
  activation                                      1.56 GiB   50.0%  ██████
  optimizer state                               784.00 MiB   24.5%  ███
  gradient                                      400.00 MiB   12.5%  ██
  parameter                                     400.00 MiB   12.5%  ██
  allocator slack                                16.00 MiB    0.5%

Top modules                                                  forward    backward
  GPT.head                              1.17 GiB   37.5%    1.17 GiB
  GPT.token_embedding                 500.00 MiB   15.6%              500.00 MiB
  GPT.encoder.some…module.projection  300.00 MiB    9.4%  300.00 MiB
  GPT.blocks.0.attention              200.00 MiB    6.2%  200.00 MiB
  GPT.blocks.1.attention              200.00 MiB    6.2%  200.00 MiB
  and 4 more with 800.00 MiB together

Top source lines                                             forward    backward
  examples/train_gpt2.py:83             1.95 GiB   62.5%    1.46 GiB  500.00 MiB
  examples/train_gpt2.py:122            1.17 GiB   37.5%    1.17 GiB

Largest blocks
  392.00 MiB  saved for backward by GPT.head from examples/train_gpt2.py:83
              until its backward

"""

FITS_TEXT = (
    """\
Fits on RTX 3060 12 GB: needs 3.43 GiB of 11.76 GiB, 8.32 GiB to spare

"""
    + EVIDENCE_TEXT
    + """\
Margin        8.32 GiB free, 71% of the GPU

Corrected for CUDA
  - host_memory: -30.00 MiB in 120 blocks
  - cublas_workspace: +8.12 MiB in 1 block

Assumed
  - The CUDA context takes as much as on the published runs; drivers differ by
    some tens of MiB.

Timings       read 125.0 ms, attribute 30.0 ms, simulate 4.0 ms
"""
)

DOES_NOT_FIT_TEXT = (
    """\
Does not fit on RTX 4060 8 GB: needs 3.43 GiB of 2.93 GiB, short by 514.00 MiB,
fails in iteration 0, forward, at model.py:41 (aten::convolution)

"""
    + EVIDENCE_TEXT
    + """\
Margin        514.00 MiB missing, 17% of the GPU

Corrected for CUDA
  - host_memory: -30.00 MiB in 120 blocks
  - cublas_workspace: +8.12 MiB in 1 block

Assumed
  - The CUDA context takes as much as on the published runs; drivers differ by
    some tens of MiB.

Problems in the trace
  - free of unknown address (data loss), 1,200 x, first at byte 34,567: blocks
    that were born before the trace
  - empty memory event (info), 2 x: memory events of zero bytes

Timings       read 125.0 ms, attribute 30.0 ms, simulate 4.0 ms
"""
)

NO_GPU_TEXT = """\
Needs 3.43 GiB of GPU memory; name a GPU with --gpu for a verdict

Peak          3.29 GiB reserved + 146.00 MiB CUDA context
  in blocks   3.12 GiB allocated, 3.11 GiB requested by tensors
  persistent  500.00 MiB outlives its iteration, 2.64 GiB does not
  bounds      3.11 GiB with perfect reuse, 40.00 GiB without any
Interval      3.32 GiB to 3.81 GiB, each with 0.9 confidence; 20 measured runs
              (cpu, other)
Where         outside of iterations
Allocated     ▁█▃
Reserved      ▁██

The number on the card
  context               146.00 MiB  █
  tensors                 3.11 GiB   █████████████████████████████
  rounding               20.00 MiB
  fragmentation         128.00 MiB                                ██
  cached                 40.00 MiB
  device peak             3.43 GiB  ████████████████████████████████

At the peak, by category
  activation                                      1.56 GiB   50.0%  ██████
  optimizer state                               784.00 MiB   24.5%  ███
  gradient                                      400.00 MiB   12.5%  ██
  parameter                                     400.00 MiB   12.5%  ██
  allocator slack                                16.00 MiB    0.5%

Top modules                                                  forward    backward
  GPT.head                              1.17 GiB   37.5%    1.17 GiB
  GPT.token_embedding                 500.00 MiB   15.6%              500.00 MiB
  GPT.encoder.some…module.projection  300.00 MiB    9.4%  300.00 MiB
  GPT.blocks.0.attention              200.00 MiB    6.2%  200.00 MiB
  GPT.blocks.1.attention              200.00 MiB    6.2%  200.00 MiB
  and 4 more with 800.00 MiB together

Top source lines                                             forward    backward
  examples/train_gpt2.py:83             1.95 GiB   62.5%    1.46 GiB  500.00 MiB
  examples/train_gpt2.py:122            1.17 GiB   37.5%    1.17 GiB

Largest blocks
  392.00 MiB  saved for backward by GPT.head from examples/train_gpt2.py:83
              until its backward

Corrected for CUDA
  - host_memory: -30.00 MiB in 120 blocks
  - cublas_workspace: +8.12 MiB in 1 block

Assumed
  - The CUDA context takes as much as on the published runs; drivers differ by
    some tens of MiB.

Timings       read 125.0 ms, attribute 30.0 ms, simulate 4.0 ms
"""


def shown(estimate: Estimate, *, width: int = 80, encoding: str = "utf-8") -> str:
    """The report as it goes into a pipe."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    render(estimate, Console(file=file, width=width))
    return "".join(f"{line.rstrip()}\n" for line in raw.getvalue().decode(encoding).splitlines())


@pytest.mark.parametrize(
    ("estimate", "text"),
    [(FITS, FITS_TEXT), (DOES_NOT_FIT, DOES_NOT_FIT_TEXT), (NO_GPU, NO_GPU_TEXT)],
    ids=["fits", "does not fit", "no GPU"],
)
def test_report(estimate: Estimate, text: str) -> None:
    assert shown(estimate) == text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("estimate", [FITS, DOES_NOT_FIT, NO_GPU], ids=["fits", "does not fit", "no GPU"])
def test_no_line_is_wider_than_the_terminal_or_than_a_page(estimate: Estimate, width: int) -> None:
    lines = shown(estimate, width=width).splitlines()
    assert max(map(len, lines)) <= min(width, 100)


def test_needs_no_unicode() -> None:
    text = shown(FITS, encoding="ascii")
    assert "50.0%  ######" in text
    assert "GPT.encoder.som...odule.projection" in text


def test_colours_are_for_terminals_only() -> None:
    terminal = io.StringIO()
    render(
        FITS, Console(file=terminal, width=80, force_terminal=True, color_system="standard", no_color=False)
    )
    assert "\x1b[" in terminal.getvalue()
    assert "\x1b" not in shown(FITS)


def test_a_wide_terminal_has_the_passes_and_the_bars() -> None:
    assert (
        "  GPT.token_embedding                       500.00 MiB   15.6%              500.00 MiB  ██\n"
        in shown(FITS, width=100)
    )


def test_square_brackets_in_names_are_not_markup() -> None:
    module = {"[bold]Net[/bold].layers[0]": 1024**2}
    estimate = replace(
        FITS,
        breakdown=Breakdown(
            category=module, category_peaks=module, module=module, operator=module, source_line=module
        ),
    )
    assert shown(estimate).count("[bold]Net[/bold].layers[0]") == 3


def test_failure_without_a_place_in_the_script() -> None:
    oom = DOES_NOT_FIT.simulation.oom
    assert oom is not None
    nowhere = replace(oom, operator=None, module=None, source_line=None, iteration=-1, phase="other")
    text = shown(replace(DOES_NOT_FIT, simulation=replace(DOES_NOT_FIT.simulation, oom=nowhere)))
    assert "short by 514.00 MiB,\nfails outside of iterations\n" in text


def test_parts_of_an_edited_estimate_that_are_more_than_its_peak_draw_no_endless_bar() -> None:
    card = (CardPart("context", 1 << 60, "measured"), *FITS.card)
    for peak_bytes in (0, 1, FITS.device_peak_bytes):
        text = shown(replace(FITS, card=card, device_peak_bytes=peak_bytes), width=100)
        assert max(map(len, text.splitlines())) <= 100


def test_values_below_zero_of_an_edited_estimate_are_shown_as_nothing() -> None:
    assert sparkline([-5, 0, 10], 10, 3, plain=True) == sparkline([0, 0, 10], 10, 3, plain=True)
