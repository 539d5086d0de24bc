"""Which modules and lines of two runs are taken for the same."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from xmem.difference.names import align_lines, align_modules, pattern, unwrapped


def lines(**operators: str) -> dict[str, set[object]]:
    """``lines(l3="mm")``: in ``train.py:3`` the operator mm runs."""
    return {f"train.py:{name[1:]}": {operator} for name, operator in operators.items()}


def test_unchanged_lines_are_themselves() -> None:
    same = lines(l1="to", l2="to", l7="mm")
    assert align_lines(same, same) == {name: name for name in same}


def test_lines_below_an_insertion_move_together() -> None:
    before = lines(l10="to", l11="to", l20="linear", l21="gelu")
    after = lines(l10="to", l11="to", l23="linear", l24="gelu")
    assert align_lines(before, after) == {
        "train.py:10": "train.py:10",
        "train.py:11": "train.py:11",
        "train.py:20": "train.py:23",
        "train.py:21": "train.py:24",
    }


def test_what_a_line_does_outweighs_its_number() -> None:
    before = lines(l10="linear", l11="gelu", l12="dropout")
    after = lines(l9="linear", l10="gelu", l11="dropout")  # a line above was deleted
    assert align_lines(before, after) == {
        "train.py:10": "train.py:9",
        "train.py:11": "train.py:10",
        "train.py:12": "train.py:11",
    }


def test_a_new_line_and_a_deleted_one_stand_for_nothing() -> None:
    before = lines(l10="linear", l12="softmax", l14="mm")
    after = lines(l10="linear", l13="gelu", l15="mm")
    assert align_lines(before, after) == {"train.py:10": "train.py:10", "train.py:14": "train.py:15"}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("/a/train.py", "/b/train.py", True),  # another folder
        ("train_old.py", "train.py", True),  # another name, the same content
        ("train_gpt.py", "serve.py", False),
    ],
)
def test_files(old: str, new: str, same: bool) -> None:
    before: dict[str, set[object]] = {f"{old}:{number}": {f"op{number}"} for number in range(1, 9)}
    shift = 0 if same else 100
    after: dict[str, set[object]] = {f"{new}:{number}": {f"op{number + shift}"} for number in range(11, 19)}
    for name in list(after):
        number = int(name.rpartition(":")[2])
        after[name] = {f"op{number - 10 + shift}"}
    assert len(align_lines(before, after)) == (8 if same else 0)


def modules(root: str, **operators: str) -> dict[str, set[object]]:
    return {root: {"add"}, **{f"{root}.{name.replace('_', '.')}": {op} for name, op in operators.items()}}


NET = {"blocks_0_attn": "sdpa", "blocks_0_mlp": "linear", "blocks_1_attn": "sdpa", "blocks_1_mlp": "linear"}


def test_another_root_with_the_same_content() -> None:
    pairs = align_modules(modules("GPT", **NET), modules("DataParallel", **NET))
    assert pairs == {name: "DataParallel" + name[3:] for name in modules("GPT", **NET)} | {
        "GPT.blocks": "DataParallel.blocks",
        "GPT.blocks.0": "DataParallel.blocks.0",
        "GPT.blocks.1": "DataParallel.blocks.1",
    }


def test_a_renamed_child_is_told_by_what_it_does() -> None:
    renamed = {name.replace("attn", "attention"): op for name, op in NET.items()}
    pairs = align_modules(modules("GPT", **NET), modules("GPT", **renamed))
    assert pairs["GPT.blocks.1.attn"] == "GPT.blocks.1.attention"
    assert pairs["GPT.blocks.1.mlp"] == "GPT.blocks.1.mlp"


def test_another_child_in_its_place_is_another_child() -> None:
    pairs = align_modules(modules("GPT", attn="sdpa"), modules("GPT", conv="conv2d"))
    assert pairs == {"GPT": "GPT"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (modules("GPT", **NET), modules("GPT2", **NET, head="mm")),
        (modules("A", x="mm", y="mm"), modules("A", z="mm")),
        (modules("A"), modules("B", x="mm")),
    ],
)
def test_the_order_of_the_runs_makes_no_difference(
    before: Mapping[str, set[object]], after: Mapping[str, set[object]]
) -> None:
    assert align_modules(after, before) == {new: old for old, new in align_modules(before, after).items()}
    as_lines = [{f"{name}.py:{len(name)}": ops for name, ops in side.items()} for side in (before, after)]
    there, back = align_lines(*as_lines), align_lines(*reversed(as_lines))
    assert back == {new: old for old, new in there.items()}


def test_wrappers_and_patterns() -> None:
    assert unwrapped("DataParallel.module.blocks.3") == "DataParallel.blocks.3"
    assert unwrapped("OptimizedModule._orig_mod.fc") == "OptimizedModule.fc"
    assert unwrapped("FSDP._fsdp_wrapped_module.l.0._checkpoint_wrapped_module.q") == "FSDP.l.0.q"
    assert unwrapped("module") == "module"
    assert pattern("GPT.blocks.11.mlp.0") == "GPT.blocks.*.mlp.*"
    assert pattern("ResNet18.conv1.0a") == "ResNet18.conv1.0a"
