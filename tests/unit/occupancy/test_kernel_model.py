"""Kernels of problems that were not recorded, from a few that were."""

from collections import Counter

import numpy as np
import pytest

from xmem.occupancy.averages import achieved, averages
from xmem.occupancy.calculator import filling, residency
from xmem.occupancy.durations import fit_roofline, roofline_ns
from xmem.occupancy.grids import Observation, fit_rule, quantities_of, tile_of
from xmem.occupancy.kernel_data import card, document_of, recorded_of, shipped_model
from xmem.occupancy.kernel_model import Kernel, KernelLaunch, KernelModel, Recorded
from xmem.occupancy.launches import Known, Launches, LibraryCalls
from xmem.occupancy.library_kernels import with_library_kernels
from xmem.occupancy.limits import limits_of
from xmem.occupancy.problems import Problem, Product, broadcast

H100 = ((9, 0), 132)
ELEMENTWISE = Kernel("vectorized_elementwise_kernel<4, Add>", 128, 24, 0)
SMALL_TILE = Kernel("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8", 128, 88, 33792)
LARGE_TILE = Kernel("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8", 128, 152, 147456)


def _add(*sizes: int) -> Problem:
    return Problem("aten::add", (sizes, sizes), ("bfloat16",) * 2, (True, True))


def _product(m: int, n: int, k: int) -> Problem:
    shapes = ((m,), (n, k), (k, m))
    return Problem("aten::addmm", shapes, ("bfloat16",) * 3, (True,) * 3, Product(m, n, k, 1, "tn", 8))


def _recorded(problem: Problem, kernel: Kernel, blocks: int) -> Recorded:
    return Recorded(problem, *H100, (KernelLaunch(kernel, blocks),))


def test_the_grid_of_an_elementwise_kernel_follows_from_the_elements() -> None:
    model = KernelModel(
        [_recorded(_add(1, 141, 512), ELEMENTWISE, 141), _recorded(_add(4, 197, 768), ELEMENTWISE, 1182)]
    )
    predicted = model.predict(_add(2, 1000, 1001), *H100)
    assert predicted is not None
    assert predicted.launches == (KernelLaunch(ELEMENTWISE, 3911),)  # 2,002,000 elements, 512 a block
    assert model.rule(ELEMENTWISE).work == 512


def test_blocks_that_loop_are_capped_per_multiprocessor() -> None:
    def select(rows: int) -> Problem:
        return Problem("aten::index_select", ((30_000, 512), (rows,)), ("bfloat16", "int64"), (True, True))

    kernel = Kernel("indexSelectLargeIndex", 128, 32, 0)
    model = KernelModel(
        [_recorded(select(rows), kernel, blocks) for rows, blocks in ((141, 564), (100, 400), (5000, 1056))]
    )
    assert model.predict(select(200), *H100).launches[0].blocks == 800
    assert model.predict(select(9000), *H100).launches[0].blocks == 8 * 132
    assert model.predict(select(9000), (9, 0), 100).launches[0].blocks == 800


def test_tiles_are_counted_as_cutlass_swizzles_them() -> None:
    assert tile_of(SMALL_TILE.name) == (32, 32)
    assert tile_of("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1") == (128, 64)
    assert tile_of("at::native::reduce_kernel") is None
    # Recorded on an H100: 788 rows and 768 columns in tiles of 128 by 64 are 13 by 6, and 6 become 8.
    assert quantities_of(_product(768, 788, 768), (128, 64))["swizzled tiles"] == 104
    seen = [
        Observation(_product(m, n, k), blocks, 132)
        for m, n, k, blocks in ((768, 788, 768, 104), (512, 141, 512, 3 * 4), (3072, 128, 768, 48))
    ]
    rule = fit_rule(LARGE_TILE.name, seen)
    assert rule is not None
    assert (rule.quantity, rule.share) == ("swizzled tiles", 1.0)


def test_a_small_product_takes_small_tiles_and_a_larger_one_does_not() -> None:
    model = KernelModel(
        [
            _recorded(_product(512, 141, 512), SMALL_TILE, 80),
            _recorded(_product(3072, 3000, 768), LARGE_TILE, 1128),
        ]
    )
    assert model.predict(_product(512, 150, 512), *H100).launches[0].kernel == SMALL_TILE
    # As far from either. In small tiles every multiprocessor would read more than in one large tile.
    assert model.predict(_product(768, 788, 768), *H100).launches == (KernelLaunch(LARGE_TILE, 104),)


def test_what_was_recorded_is_repeated_and_what_never_was_is_not_invented() -> None:
    record = _recorded(_product(512, 141, 512), SMALL_TILE, 77)
    model = KernelModel([record])
    predicted = model.predict(record.problem, *H100)
    assert predicted is not None
    assert (predicted.launches, predicted.distance) == (record.launches, 0.0)
    assert model.predict(_add(3, 4), *H100) is None


def test_records_survive_their_document() -> None:
    records = [_recorded(_add(2, 3), ELEMENTWISE, 1), _recorded(_product(512, 141, 512), SMALL_TILE, 80)]
    assert recorded_of(document_of([*records, records[0]], {})) == records


def test_the_shipped_model_says_what_it_was_recorded_on_and_its_error() -> None:
    about = card()
    assert sum(trace["launches"] for trace in about["traces"]) > 20_000
    errors = about["leave_one_model_out"]["mean_relative_error"]
    assert errors["library kernels predicted"]["launch_mean"] <= 0.05
    assert errors["every launch predicted"]["launch_mean"] <= 0.05
    predicted = shipped_model().predict(_product(768, 788, 768), *H100)
    assert predicted is not None
    assert predicted.launches[0].kernel.registers > 0


def test_library_calls_become_rows_of_kernels() -> None:
    strings = ("cublasGemmEx", "gemm", "tn", "bfloat16", "float32", "aten::addmm", "Net.fc", "add_kernel")
    calls = LibraryCalls(
        function=np.array([0, 0], np.int32),
        family=np.array([1, -1], np.int32),
        sizes=np.array([[768, 788, 768, 1], [-1, -1, -1, -1]], np.int64),
        layout=np.array([2, -1], np.int32),
        dtypes=np.array([[3, 3, 3, 4], [-1] * 4], np.int32),
        problem=np.array([-1, -1], np.int32),
    )
    none = np.full(3, -1, np.int32)
    launches = Launches(
        strings=strings,
        name=np.array([7, 0, 0], np.int32),
        grid=np.array([[5, 1, 1], [-1] * 3, [-1] * 3], np.int32),
        block=np.array([[128, 1, 1], [-1] * 3, [-1] * 3], np.int32),
        dynamic_shared=np.array([0, -1, -1], np.int32),
        static_shared=np.array([0, -1, -1], np.int32),
        registers=np.array([16, -1, -1], np.int32),
        cluster=np.zeros(3, np.int32),
        stream=np.zeros(3, np.int32),
        operator=np.full(3, 5, np.int32),
        module=np.full(3, 6, np.int32),
        begin_ns=none.astype(np.int64),
        duration_ns=none.astype(np.int64),
        known=np.array([Known.EXACT, Known.UNKNOWN, Known.UNKNOWN], np.uint8),
        library_call=np.array([-1, 0, 1], np.int32),
        library_calls=calls,
    )
    two_kernels = Recorded(
        _product(768, 788, 768), *H100, (KernelLaunch(LARGE_TILE, 104), KernelLaunch(ELEMENTWISE, 7))
    )
    found = with_library_kernels(launches, *H100, KernelModel([two_kernels]))
    names = ["add_kernel", LARGE_TILE.name, ELEMENTWISE.name, "cublasGemmEx"]
    assert [found.text(row) for row in found.name] == names
    assert list(found.known) == [Known.EXACT, Known.MODELLED, Known.MODELLED, Known.UNKNOWN]
    assert list(found.blocks[1:3]) == [104, 7]
    assert list(found.registers) == [16, 152, 24, -1]
    assert list(found.shared_bytes[1:3]) == [147456, 0]
    assert [found.text(row) for row in found.module] == ["Net.fc"] * 4


def test_durations_are_compute_or_memory_after_a_floor() -> None:
    # 2 x 1,000 FLOP per nanosecond and multiprocessor, 10 bytes: each with a launch of 2 us.
    recorded = [
        (_product(4096, 4096, k), 100, 2000 + 2 * 4096 * 4096 * k // 100_000) for k in (2048, 4096, 8192)
    ]
    recorded += [
        (_add(rows, 1024), 100, 2000 + rows * 1024 * 6 // 1000) for rows in (1, 20_000, 40_000, 80_000)
    ]
    roofline = fit_roofline(recorded)
    for problem, multiprocessors, took in recorded:
        assert roofline_ns(roofline, problem, multiprocessors) == pytest.approx(took, rel=0.25)
    assert roofline_ns(roofline, _add(60_000, 1024), 200) < roofline_ns(roofline, _add(60_000, 1024), 100)


def test_four_means_of_one_run() -> None:
    limits = limits_of((9, 0))
    held = residency(limits, [256, 256], [64, 64], [0, 0])
    filled = filling(limits, 132, held, [1, 528])
    means = averages(filled, np.array([1000, 3000]), 8000, error=0.1)
    assert means.launch_mean.value == pytest.approx((8 / 64 / 132 + 0.5) / 2)
    assert (means.launch_mean.low, means.launch_mean.high) == pytest.approx(
        (0.9 * means.launch_mean.value, 1.1 * means.launch_mean.value)
    )
    assert means.launch_mean_active.value == pytest.approx(achieved(filled).expected.mean())
    assert means.launch_mean_active.low < means.launch_mean_active.value < means.launch_mean_active.high
    assert means.time_mean is not None
    assert means.time_mean.value == pytest.approx((8 / 64 / 132 + 3 * 0.5) / 4)
    assert means.wall_mean is not None
    assert means.wall_mean.value == pytest.approx(means.time_mean.value / 2)
    assert averages(filled).time_mean is None


def test_shapes_broadcast_or_the_largest_counts() -> None:
    assert broadcast(((4, 1, 3), (5, 1))) == (4, 5, 3)
    assert broadcast(((30_000, 512), (141,))) == (30_000, 512)
    assert broadcast(()) == ()


def test_the_engine_that_the_library_chose_counts_more_than_the_size() -> None:
    def convolution(places: int, choice: str) -> Problem:
        product = Product(64, places, 576, 1, "nhwc", 8)
        return Problem("aten::cudnn_convolution", ((64, 64),), ("float32",) * 2, (), product, choice)

    model = KernelModel(
        [
            _recorded(convolution(1000, "67 28=2"), LARGE_TILE, 8),
            _recorded(convolution(64_000, "38 22=2"), SMALL_TILE, 4000),
        ]
    )
    assert model.predict(convolution(1100, "38 22=2"), *H100).launches[0].kernel == SMALL_TILE
    assert model.predict(convolution(60_000, "67 28=2"), *H100).launches[0].kernel == LARGE_TILE
    assert model.predict(convolution(1100, ""), *H100).launches[0].kernel == LARGE_TILE  # unknown: by size


def test_what_nearly_the_same_problem_took_is_not_second_guessed() -> None:
    without_tile = Kernel("sgemm_largek_lds64<true>", 256, 128, 0)
    model = KernelModel(
        [
            _recorded(_product(768, 3152, 768), LARGE_TILE, 300),
            _recorded(_product(768, 3940, 768), without_tile, 4000),
        ]
    )
    assert model.predict(_product(768, 3152, 776), *H100).launches[0].kernel == LARGE_TILE


def test_a_kernel_that_exchanges_dimensions_has_a_grid_of_what_it_reads_there() -> None:
    exchange = Kernel("nchwToNhwcKernel", 256, 32, 4224)

    def convolution(images: int, channels: int, side: int) -> Problem:
        shapes = ((images, channels, side, side), (64, channels, 3, 3), (images, 64, side, side))
        product = Product(64, images * side * side, channels * 9, 1, "nchw", 8)
        return Problem("aten::cudnn_convolution", shapes, ("float32",) * 3, (), product, "67")

    def recorded(images: int, channels: int, side: int) -> Recorded:
        squares = -(-channels // 32)
        first = KernelLaunch(exchange, images * squares * -(-side * side // 32))
        return Recorded(
            convolution(images, channels, side), *H100, (first, KernelLaunch(exchange, 64 * squares))
        )

    model = KernelModel([recorded(200, 208, 6), recorded(100, 440, 3), recorded(16, 64, 56)])
    # As on an H100: 200 images of 440 channels and 3 x 3 places are 200 * 14 squares, the filter 64 * 14.
    found = model.predict(convolution(200, 440, 3), *H100)
    assert [launch.blocks for launch in found.launches] == [2800, 896]


def test_a_recurrent_network_launches_more_at_more_steps() -> None:
    def network(steps: int) -> Problem:
        return Problem("cudnnRNNForward 2", ((16, 256), (128,), (2, 1), (steps,)), ("float32",))

    first, each = KernelLaunch(LARGE_TILE, 8), KernelLaunch(ELEMENTWISE, 16)
    model = KernelModel([Recorded(network(4), *H100, (first, *[each] * 8))])
    kernels = [launch.kernel for launch in model.predict(network(6), *H100).launches]
    assert (kernels.count(LARGE_TILE), kernels.count(ELEMENTWISE)) == (1, 12)


def test_an_engine_that_launches_a_kernel_for_each_group_does_so_for_other_groups() -> None:
    def depthwise(groups: int) -> Problem:
        product = Product(1, 1800, 9, groups, "nhwc", 1)
        return Problem("aten::cudnn_convolution", ((200, groups, 3, 3),), ("bfloat16",) * 2, (), product, "0")

    launch = KernelLaunch(Kernel("convolve_common_engine_float_NHWC", 256, 64, 4096), 15)
    model = KernelModel([Recorded(depthwise(768), *H100, (launch,) * 768)])
    assert len(model.predict(depthwise(384), *H100).launches) == 384


def test_a_grid_without_a_rule_stays_within_what_was_seen() -> None:
    persistent = Kernel("batchnorm_fwtr_nhwc_semiPersist", 512, 96, 0)

    def norm(images: int) -> Problem:
        return Problem("cudnnBatchNormalizationForwardTrainingEx", ((images, 256, 6, 6),), ("float32",))

    seen = ((100, 228), (170, 250), (190, 251), (220, 233), (300, 239))
    model = KernelModel([_recorded(norm(images), persistent, blocks) for images, blocks in seen])
    assert model.rule(persistent) is None
    assert model.predict(norm(3000), *H100).launches[0].blocks == 251
    assert model.predict(norm(1), *H100).launches[0].blocks == 228


def test_a_network_that_was_not_recorded_launches_what_its_algorithm_does() -> None:
    """As an H100 does for one with tanh and an LSTM, two layers of 256: ``bench/gpu/results``."""

    def network(cell: int, algorithm: str, directions: int = 1) -> Problem:
        shapes = ((64, 256), (128,), (2, directions), (128,))
        return Problem(f"cudnnRNNForward {cell}", shapes, ("float32", "tfloat32"), (), None, algorithm)

    product = Product(256, 256, 256, layout="tn")
    known = Problem("aten::mm", ((256, 256),) * 2, ("float32", "tfloat32"), (), product)
    model = KernelModel([Recorded(known, *H100, (KernelLaunch(LARGE_TILE, 4),))])

    def launched(problem: Problem) -> dict[str, int]:
        return dict(Counter(launch.kernel.name for launch in model.predict(problem, *H100).launches))

    persistent = launched(network(1, "small state"))
    assert persistent == {LARGE_TILE.name: 2, "RNN_blockPersist": 2}
    # Inputs of eight steps at once, for 16 products a layer.
    stepwise = {LARGE_TILE.name: 2 * (16 + 128), "elemWiseRNNcell": 2 * 128}
    assert launched(network(2, "standard")) == stepwise
    assert launched(network(3, "standard", 2)) == {name: 2 * count for name, count in stepwise.items()}
    elementwise = [
        launch.blocks
        for launch in model.predict(network(2, "standard"), *H100).launches
        if launch.kernel.name == "elemWiseRNNcell"
    ]
    assert set(elementwise) == {64}
    assert model.predict(network(2, "persistent"), *H100) is None
    assert model.predict(Problem("cudnnRNNForward 2", (), ("float32",)), *H100) is None


def test_a_recurrent_network_that_was_recorded_launches_what_it_did() -> None:
    def network(steps: int) -> Problem:
        shapes = ((16, 256), (128,), (2, 1), (steps,))
        return Problem("cudnnRNNForward 2", shapes, ("float32", "tfloat32"), (), None, "standard")

    model = KernelModel([Recorded(network(4), *H100, (KernelLaunch(ELEMENTWISE, 16),) * 8)])
    assert [launch.kernel for launch in model.predict(network(6), *H100).launches] == [ELEMENTWISE] * 12


def test_an_engine_without_groups_takes_them_one_at_a_time() -> None:
    """As on an H100 with bfloat16, 768 channels and filters of 7 x 7: ``bench/gpu/results``."""

    def convolution(groups: int) -> Problem:
        shapes = ((8, 32 * groups, 6, 6), (32 * groups, 32, 3, 3), (8, 32 * groups, 6, 6))
        product = Product(32, 8 * 36, 32 * 9, groups, "nhwc", 8)
        return Problem("aten::cudnn_convolution", shapes, ("bfloat16",) * 3, (True,) * 3, product, "28 2=4")

    def launched(name: str) -> list[KernelLaunch]:
        launch = KernelLaunch(Kernel(name, 64, 80, 4096), 9, 0.0)
        model = KernelModel([Recorded(convolution(1), *H100, (launch,))])
        return list(model.predict(convolution(12), *H100).launches)

    of_groups = launched("convolve_common_engine_float_NHWC<__nv_bfloat16, __nv_bfloat16, 128, 5, 5>")
    assert [launch.blocks for launch in of_groups] == [9] * 12
    assert sum(launch.share for launch in of_groups) == pytest.approx(1)
    assert len(launched("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc")) == 1
