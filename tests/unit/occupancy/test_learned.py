"""The paper's network: its layers against their formulas, its graph against a known model, and that it
learns."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from xmem.devices.gpus import find_device  # noqa: E402
from xmem.occupancy.learned.extract import graph_of  # noqa: E402
from xmem.occupancy.learned.graph import (  # noqa: E402
    OPERATORS,
    edge_features,
    graph_in_order,
    graph_of_edges,
    node_features,
)
from xmem.occupancy.learned.layers import (  # noqa: E402
    AttentionNodeEdgeEncoder,
    softmax_of_incoming,
)
from xmem.occupancy.learned.networks import NETWORKS  # noqa: E402
from xmem.occupancy.learned.training import Example, batch_of, errors, predict, train  # noqa: E402
from xmem.occupancy.problems import Problem, Product  # noqa: E402

H100 = find_device("h100")


class _Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.fc = torch.nn.Linear(8, 8, bias=False)

    def forward(self, image: "torch.Tensor") -> "torch.Tensor":
        pooled = torch.relu(self.conv(image)).mean((2, 3))
        return self.fc(pooled) + pooled


def test_the_graph_of_a_model_has_its_operators_its_residual_edge_and_its_work() -> None:
    graph = graph_of(_Residual(), (torch.empty(4, 3, 32, 32),))
    names = [problem.operator.removeprefix("aten::") for problem in graph.problems]
    assert names == ["cudnn_convolution", "relu", "mean", "mm", "add"]
    edges = {
        (int(a), int(b)): int(kind) for a, b, kind in zip(graph.source, graph.target, graph.kind, strict=True)
    }
    assert edges == {(0, 1): 0, (1, 2): 0, (2, 3): 0, (3, 4): 0, (2, 4): 1}
    conv, product = graph.problems[0].product, graph.problems[3].product
    assert conv == Product(8, 4 * 16 * 16, 27, 1, "nchw", 1)
    assert conv.flops == 2 * 8 * 3 * 3 * 3 * 4 * 16 * 16  # the paper's example, section III-C
    assert (product.m, product.n, product.k, product.layout) == (8, 4, 8, "tn")
    assert list(graph.edge_bytes[:1]) == [4 * 8 * 4 * 16 * 16]


def test_features_are_of_table_one() -> None:
    graph = graph_of(_Residual(), (torch.empty(4, 3, 32, 32),))
    nodes, edges = node_features(graph, H100), edge_features(graph, H100)
    assert nodes.shape[0] == 5
    assert edges.shape == (5, 4)
    assert nodes[0, OPERATORS.index("cudnn_convolution")] == 1
    assert (nodes[:, : len(OPERATORS) + 1].sum(axis=1) == 1).all()
    assert np.isfinite(nodes).all()
    assert not np.array_equal(nodes, node_features(graph, find_device("t4")))


def test_recorded_operators_are_a_chain_with_guessed_returns() -> None:
    def add(*shapes: tuple[int, ...]) -> Problem:
        return Problem("aten::add", shapes, ("float32",) * len(shapes), (True,) * len(shapes))

    graph = graph_in_order([add((4, 8)), add((2,)), add((2,), (4, 8))])
    assert list(zip(graph.source, graph.target, graph.kind, strict=True)) == [(0, 1, 0), (1, 2, 0), (0, 2, 1)]
    assert len(graph.window(1, 3)) == 2
    assert list(graph.window(1, 3).source) == [0]


def test_the_softmax_is_over_what_comes_into_a_node() -> None:
    values = torch.tensor([[0.0, 5.0], [np.log(3.0), 5.0], [7.0, -2.0]])
    shares = softmax_of_incoming(values.float(), torch.tensor([2, 2, 0]), 3)
    assert shares == pytest.approx(torch.tensor([[0.25, 0.5], [0.75, 0.5], [1.0, 1.0]]))


def test_the_encoder_computes_the_papers_formula() -> None:
    torch.manual_seed(0)
    layer = AttentionNodeEdgeEncoder(3, 2, 4)
    nodes, features = torch.randn(3, 3), torch.randn(2, 2)
    found, edges = layer(nodes, torch.tensor([[0, 2], [1, 2]]), features)
    rise = torch.nn.functional.leaky_relu
    own = rise(nodes @ layer.nodes.weight.T)
    new = [
        torch.sigmoid(
            (layer.ends.weight @ torch.cat([own[node], own[2]])) * (layer.edges.weight @ features[row])
        )
        for row, node in enumerate((0, 1))
    ]
    shares = torch.softmax(torch.stack([layer.weigh.weight @ edge for edge in new]), dim=0)
    expected = rise(shares[0] * own[0] + shares[1] * own[1])
    torch.testing.assert_close(edges, torch.stack(new))
    torch.testing.assert_close(found[2], expected)
    torch.testing.assert_close(found[0], rise(own[0]))  # nothing comes in


def _example(count: int, occupancy: float, operator: str = "aten::add") -> Example:
    problems = [Problem(operator, ((64, 64),), ("float32",), (True,)) for _ in range(count)]
    return Example("model", graph_in_order(problems), H100, occupancy, count)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_padding_changes_nothing(name: str) -> None:
    examples = [_example(3, 0.2), _example(9, 0.5)]
    network, scale = train(NETWORKS[name], examples, width=16, epochs=1)
    alone = predict(network, scale, examples[:1])
    together = predict(network, scale, examples)
    assert alone[0] == pytest.approx(together[0], abs=1e-5)
    assert 0 < alone[0] < 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "DNN-occu" else pytest.mark.nightly) for n in sorted(NETWORKS)]
)
def test_every_network_tells_two_kinds_of_models_apart(name: str) -> None:
    examples = [
        _example(4, 0.2),
        _example(6, 0.2),
        _example(4, 0.7, "aten::gelu"),
        _example(5, 0.7, "aten::gelu"),
    ]
    network, scale = train(NETWORKS[name], examples, width=32, epochs=150, learning_rate=3e-3)
    relative, squared = errors(predict(network, scale, examples), [item.occupancy for item in examples])
    assert relative < 0.1
    assert squared < 0.003


def test_a_graph_without_edges_is_a_graph() -> None:
    lonely = Example("model", graph_of_edges([_example(1, 0.5).graph.problems[0]], []), H100, 0.5, 1)
    network, scale = train(NETWORKS["DNN-occu"], [lonely, _example(3, 0.5)], width=16, epochs=1)
    assert np.isfinite(predict(network, scale, [lonely])).all()
    assert batch_of([lonely], scale).edges.shape == (0, 2)
