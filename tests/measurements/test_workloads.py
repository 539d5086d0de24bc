"""The published jobs: the right networks, and each thing of the loop in its place."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
workloads = pytest.importorskip("workloads")
workloads.vision_operators.define_vision_operators()
torchvision = pytest.importorskip("torchvision")
pytest.importorskip("transformers")

TINY = workloads.Scale(16)
# Millions, as their authors publish them.
PARAMETERS = {
    "distilbert/distilgpt2": 81.9,
    "openai-community/gpt2": 124.4,
    "cerebras/Cerebras-GPT-111M": 111.1,
    "EleutherAI/gpt-neo-125M": 125.2,
    "facebook/opt-125m": 125.2,
    "facebook/opt-350m": 331.2,
    "T5-small": 60.5,
    "t5-base": 222.9,
    "EleutherAI/pythia-1b": 1011.8,
    "Qwen/Qwen3-0.6B": 596.0,
    "Qwen/Qwen3-4B": 4022.5,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1777.1,
    "meta-llama/Llama-3.2-3B-Instruct": 3212.7,
    "google/gemma-2-2b-it": 2614.3,
}


def parameters(model: Any) -> int:
    return sum(tensor.numel() for tensor in model.parameters())


@pytest.mark.parametrize("name", workloads.TRANSFORMERS)
def test_language_models_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = workloads.transformer.build(name, workloads.Scale())
    assert round(parameters(model) / 1e6, 1) == PARAMETERS[name]
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", workloads.CNNS)
def test_image_models_have_the_published_number_of_parameters(name: str) -> None:
    constructor, classes = workloads.CNNS[name]
    published = torchvision.models.get_model_weights(constructor).DEFAULT.meta["num_params"]
    with workloads.weights.uninitialised_weights():
        model = workloads.cnn.build(name, workloads.Scale())
    head = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
    assert head.out_features == classes
    assert parameters(model) == published - (1000 - classes) * (head.in_features + 1)


@pytest.mark.parametrize("family", ["cnn", "transformer"])
@pytest.mark.parametrize(("mode", "left"), [(0, True), (1, True), (2, False)])
def test_gradients_outlive_the_iteration_unless_dropped_at_its_end(
    family: Any, mode: int, left: bool
) -> None:
    model = {"cnn": "MobeNetV3Small", "transformer": "openai-community/gpt2"}[family]
    prepared = workloads.prepare(workloads.Job(family, model, "SGD", 2, zero_grad=mode, iterations=1), TINY)
    seen: list[bool] = []
    weights = list(prepared.model.parameters())
    workloads.train(
        prepared, torch.device("cpu"), lambda _: seen.append(any(w.grad is not None for w in weights))
    )
    assert seen == [left]


@pytest.mark.parametrize(
    ("family", "built", "order"),
    [
        ("cnn", None, ["move", "build"]),
        ("cnn", "before", ["build", "move"]),
        ("transformer", None, ["build", "move"]),
        ("transformer", "after", ["move", "build"]),
    ],
)
def test_the_optimizer_is_built_where_the_published_loop_builds_it(
    family: Any, built: Any, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"cnn": "MobeNetV3Small", "transformer": "openai-community/gpt2"}[family]
    prepared = workloads.prepare(
        workloads.Job(family, model, "SGD", 2, iterations=1, optimizer_built=built), TINY
    )
    seen: list[str] = []
    move, build = torch.nn.Module.to, torch.optim.SGD.__init__

    def moving(module: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append("move")
        return move(module, *args, **kwargs)

    def building(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        seen.append("build")
        build(optimizer, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "to", moving)
    monkeypatch.setattr(torch.optim.SGD, "__init__", building)
    workloads.train(prepared, torch.device("cpu"))
    assert seen == order


@pytest.mark.parametrize("name", ["Adafactor", "transformers.Adafactor"])
def test_both_kinds_of_adafactor_train(name: str) -> None:
    prepared = workloads.prepare(
        workloads.Job("transformer", "openai-community/gpt2", name, 2, iterations=1), TINY
    )
    before = [weight.clone() for weight in prepared.model.parameters()]
    workloads.train(prepared, torch.device("cpu"))
    after = list(prepared.model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
