"""What breaks a limit, what does not, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from check.samples import GPT2, NO_GPU, TOO_LARGE, grown, on_ranks, shifted
from estimate_samples import DOES_NOT_FIT, MIB
from xmem.errors import ConfigError
from xmem.gate.baseline import Baseline
from xmem.gate.judge import Rule, judge
from xmem.gate.limits import AllowedGrowth, Limits, Metric, parse_growth


def rules(outcome) -> list[Rule]:
    return [finding.rule for finding in outcome.findings]


@pytest.mark.parametrize(
    ("metric", "needed_mib"),
    [(Metric.DEVICE_PEAK, 3514), (Metric.RESERVED, 3368), (Metric.ALLOCATED, 3200)],
)
def test_a_budget_is_kept_up_to_its_last_byte(metric, needed_mib):
    exact = judge("gpt2", "t.json", GPT2, Limits(budget_bytes=needed_mib * MIB, metric=metric))
    assert exact.passed
    assert exact.bytes == needed_mib * MIB
    over = judge("gpt2", "t.json", GPT2, Limits(budget_bytes=needed_mib * MIB - 1, metric=metric))
    assert rules(over) == [Rule.OVER_BUDGET]


def test_the_upper_bound_is_judged_where_a_confidence_is_asked_for():
    limits = Limits(budget_bytes=3600 * MIB)
    assert judge("gpt2", "t.json", GPT2, limits).passed
    outcome = judge("gpt2", "t.json", GPT2, Limits(budget_bytes=3600 * MIB, upper=True))
    assert outcome.bytes == 3900 * MIB
    assert "the upper bound (0.9 confidence) of the device peak is 3.81 GiB" in outcome.findings[0].message
    assert Metric.RESERVED.of(GPT2, upper=True) == (3900 - 146) * MIB
    with pytest.raises(ConfigError, match="device_peak or reserved"):
        Metric.ALLOCATED.of(GPT2, upper=True)


def test_a_gpu_is_a_limit_without_a_budget():
    assert judge("gpt2", "t.json", GPT2, Limits()).passed
    assert rules(judge("gpt2", "t.json", TOO_LARGE, Limits())) == [Rule.DOES_NOT_FIT]
    outcome = judge("gpt2", "t.json", TOO_LARGE, Limits(budget_bytes=1 * MIB))
    assert rules(outcome) == [Rule.OVER_BUDGET, Rule.DOES_NOT_FIT]


def test_where_it_runs_out_of_memory_is_the_line_to_look_at():
    finding = judge("resnet", "t.json", DOES_NOT_FIT, Limits()).findings[0]
    assert "runs out in iteration 0, forward at model.py:41, asking for 392.00 MiB" in finding.message
    assert finding.place == ("model.py", 41)


def test_a_model_that_does_not_fit_fails_outside_of_iterations():
    simulation = DOES_NOT_FIT.simulation
    early = replace(simulation, oom=replace(simulation.oom, iteration=-1, phase="other"))
    finding = judge("resnet", "t.json", replace(DOES_NOT_FIT, simulation=early), Limits()).findings[0]
    assert ", and runs out outside of iterations at " in finding.message


def test_the_categories_of_an_overrun_sum_to_the_figure():
    for metric in Metric:
        finding = judge("gpt2", "t.json", GPT2, Limits(budget_bytes=1, metric=metric)).findings[0]
        assert sum(finding.bytes_by["category"].values()) == metric.of(GPT2)
        assert finding.place == ("examples/train_gpt2.py", 83)


def test_the_largest_process_counts():
    spread = on_ranks(GPT2, 3368, 5000, 2000)
    assert Metric.RESERVED.of(spread) == 5000 * MIB
    assert Metric.DEVICE_PEAK.of(spread) == 5146 * MIB
    assert Metric.ALLOCATED.of(spread) == 4900 * MIB
    assert Metric.RESERVED.of(on_ranks(GPT2, 3368, 3000)) == 3368 * MIB
    finding = judge("fsdp", "t.json", spread, Limits(budget_bytes=4000 * MIB)).findings[0]
    assert finding.bytes_by["category"]["larger_rank"] == (5000 - 3368) * MIB


class TestBaseline:
    BEFORE = Baseline("baselines/gpt2.json", GPT2)

    @pytest.mark.parametrize(
        ("allowed", "passes"),
        [("0", False), ("99MiB", False), ("100MiB", True), ("2.8%", False), ("3%", True)],
    )
    def test_growth_is_allowed_up_to_what_was_said(self, allowed, passes):
        now = grown(GPT2, 100, module="GPT.head", line="examples/train_gpt2.py:83")  # 2.85% of 3,514 MiB
        outcome = judge("gpt2", "t.json", now, Limits(max_growth=parse_growth(allowed)), self.BEFORE)
        assert outcome.passed is passes

    def test_what_grew_is_named(self):
        now = grown(GPT2, 100, module="GPT.head", line="train.py:90")
        now = grown(now, 300, module="GPT.new", line="train.py:91", category="workspace")
        finding = judge("gpt2", "t.json", now, Limits(), self.BEFORE).findings[0]
        assert finding.rule is Rule.GREW
        assert (
            "grew by 400.00 MiB (+11.4%), from 3.43 GiB in baselines/gpt2.json to 3.82 GiB" in finding.message
        )
        assert "; mostly +300.00 MiB workspaces of GPT.new (new) from train.py:91" in finding.message
        assert finding.bytes_by == {
            "category": {"workspace": 300 * MIB, "activation": 100 * MIB},
            "module": {"GPT.new": 300 * MIB, "GPT.head": 100 * MIB},
            "source_line": {"train.py:91": 300 * MIB, "train.py:90": 100 * MIB},
        }
        assert finding.place == ("train.py", 91)

    def test_layers_that_grew_alike_are_one(self):
        now = GPT2
        for layer in range(6):
            now = grown(now, 10, module=f"GPT.blocks.{layer}.attention", line="examples/train_gpt2.py:122")
        now = grown(now, 20, module="GPT.heads.1", line="examples/train_gpt2.py:122")
        finding = judge("gpt2", "t.json", now, Limits(), self.BEFORE).findings[0]
        assert finding.bytes_by["module"] == {"GPT.blocks.*.attention": 60 * MIB, "GPT.heads.1": 20 * MIB}

    def test_lines_that_moved_have_not_grown(self):
        now = grown(shifted(GPT2, 5), 100, module="GPT.head", line="examples/train_gpt2.py:88")
        finding = judge("gpt2", "t.json", now, Limits(), self.BEFORE).findings[0]
        assert finding.bytes_by["source_line"] == {"examples/train_gpt2.py:88": 100 * MIB}

    def test_less_than_before_is_no_growth(self):
        before = Baseline("b.json", grown(GPT2, 100, module="GPT.head", line="train.py:90"))
        assert judge("gpt2", "t.json", GPT2, Limits(), before).passed

    def test_growth_beyond_the_blocks_is_named(self):
        more = replace(
            GPT2,
            peak_reserved_bytes=GPT2.peak_reserved_bytes + 64 * MIB,
            context_bytes=GPT2.context_bytes + 10 * MIB,
            device_peak_bytes=GPT2.device_peak_bytes + 74 * MIB,
        )
        finding = judge("gpt2", "t.json", more, Limits(), self.BEFORE).findings[0]
        assert finding.bytes_by["category"] == {
            "reserved_beyond_allocated": 64 * MIB,
            "cuda_context": 10 * MIB,
        }

    def test_another_question_is_said(self):
        now = grown(NO_GPU, 500, module="GPT.head", line="train.py:90")
        finding = judge("gpt2", "t.json", now, Limits(), self.BEFORE).findings[0]
        assert "the baseline was made with gpu rtx-3060, not none" in finding.message


@pytest.mark.parametrize(
    ("text", "growth"),
    [
        ("0", AllowedGrowth()),
        ("5%", AllowedGrowth(share=0.05)),
        ("0%", AllowedGrowth()),
        ("200MiB", AllowedGrowth(bytes=200 * MIB)),
    ],
)
def test_growths_are_read(text, growth):
    assert parse_growth(text) == growth


@pytest.mark.parametrize("text", ["", "5 percent", "-5%", "nan%", "inf%", "%", "5%5", "-1MiB", "much"])
def test_what_is_no_growth_is_refused(text):
    with pytest.raises(ConfigError, match="is not a valid growth; write it like 5%, 200MiB or 0"):
        parse_growth(text)
