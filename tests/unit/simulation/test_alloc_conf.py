import pytest

from xmem.errors import ConfigError
from xmem.simulation.alloc_conf import AllocatorOptions, parse

MIB = 1 << 20


def test_nothing_set_means_the_defaults() -> None:
    assert parse("") == AllocatorOptions()
    assert parse(" ") == AllocatorOptions()


def test_settings_are_read_in_pytorchs_units() -> None:
    options = parse(
        "max_split_size_mb:128, max_non_split_rounding_mb:64,garbage_collection_threshold:0.8,"
        "expandable_segments:True,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True"
    )
    assert options.max_split_bytes == 128 * MIB
    assert options.max_non_split_rounding_bytes == 64 * MIB
    assert options.garbage_collection_threshold == 0.8
    assert options.expandable_segments
    assert options.memory_fraction == 0.5
    assert options.throw_on_cudamalloc_oom


def test_the_large_segment_is_read_before_what_is_measured_by_it() -> None:
    assert parse("max_split_size_mb:30,large_segment_size_mb:30").max_split_bytes == 30 * MIB
    with pytest.raises(ConfigError, match="at least 30"):
        parse("max_split_size_mb:29,large_segment_size_mb:30")


@pytest.mark.parametrize(
    ("version", "tie_break"),
    [
        ("2.6.0+cu124", "address"),
        ("2.11", "address"),
        ("2.12.1", "object_age"),
        ("2.13", "segment_age"),
        ("3.0", "segment_age"),
    ],
)
def test_the_tie_break_goes_with_the_version(version: str, tie_break: str) -> None:
    assert parse("", version).tie_break == tie_break


def test_one_number_of_divisions_holds_for_every_size() -> None:
    assert parse("roundup_power2_divisions:4").roundup_power2_divisions == (4,) * 16


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        # The rest starts at the last listed size up to 2.8, behind it from 2.9 on.
        ("2.8", (1,) * 8 + (1, 2, 8, 8, 8, 8, 8, 8)),
        ("2.9", (1,) * 8 + (1, 2, 4, 8, 8, 8, 8, 8)),
    ],
)
def test_listed_divisions(version: str, expected: tuple[int, ...]) -> None:
    text = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    assert parse(text, version).roundup_power2_divisions == expected


def test_sizes_between_listed_ones_round_to_512_bytes() -> None:
    assert parse("roundup_power2_divisions:[2:8,16:4]").roundup_power2_divisions == (
        *(8, 8, 0, 0, 4),
        *(0,) * 11,
    )


def test_a_whole_fraction_limits_only_older_versions() -> None:
    assert parse("per_process_memory_fraction:1.0", "2.9").memory_fraction == 1.0
    assert parse("per_process_memory_fraction:1.0", "2.13").memory_fraction is None


def test_slack_follows_the_large_segment() -> None:
    text = "large_segment_size_mb:40"
    assert parse(text, "2.12").max_non_split_rounding_bytes == 40 * MIB
    assert parse(f"max_non_split_rounding_mb:50,{text}", "2.12").max_non_split_rounding_bytes == 50 * MIB


@pytest.mark.parametrize("key", ["max_split_size_mb", "max_non_split_rounding_mb"])
def test_the_size_of_a_large_segment_is_allowed_from_2_9_on(key: str) -> None:
    with pytest.raises(ConfigError, match="at least 21"):
        parse(f"{key}:20", "2.8")
    parse(f"{key}:20", "2.9")


def test_a_list_of_divisions_may_have_no_key() -> None:
    assert parse("roundup_power2_divisions:[>:4]", "2.6").roundup_power2_divisions == (4,) * 16
    assert parse("roundup_power2_divisions:[>:4]", "2.12").roundup_power2_divisions == (0, *(4,) * 15)
    assert parse("roundup_power2_divisions:[]") == parse("")


def test_settings_of_host_memory_change_nothing() -> None:
    text = "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,backend:native"
    assert parse(text) == AllocatorOptions()


@pytest.mark.parametrize(
    ("text", "version", "message"),
    [
        (
            "max_splt_size_mb:128",
            "2.13",
            "'max_splt_size_mb'; did you mean max_split_size_mb\\?.* expandable_segments,",
        ),
        ("expandable_segments:true", "2.13", "expandable_segments:true is invalid; use True or False"),
        ("max_split_size_mb:10", "2.13", "at least 20"),
        ("max_split_size_mb:-1", "2.13", "at least 20"),
        ("large_segment_size_mb:10", "2.13", "at least 11"),
        ("large_segment_size_mb:25,expandable_segments:True", "2.13", "an even number"),
        ("garbage_collection_threshold:1.0", "2.13", "above 0 and below 1"),
        ("garbage_collection_threshold:nan", "2.13", "above 0 and below 1"),
        ("per_process_memory_fraction:2", "2.13", "between 0 and 1"),
        ("per_process_memory_fraction:x", "2.13", "between 0 and 1"),
        ("roundup_power2_divisions:3", "2.13", "powers of two"),
        ("roundup_power2_divisions:[256:3]", "2.13", "powers of two"),
        ("roundup_power2_divisions:[256]", "2.13", "pairs such as"),
        ("backend:cudaMallocAsync", "2.13", "not modeled"),
        ("throw_on_cudamalloc_oom:True", "2.11", "torch 2.12 or later"),
        ("max_split_size_mb:64,,expandable_segments:True", "2.13", "key:value"),
        (",max_split_size_mb:64", "2.13", "key:value"),
        ("max_non_split_rounding_mb:40", "2.5", "torch 2.6 or later"),
        ("expandable_segments", "2.13", "key:value"),
        ("", "1.13", "2.0 or later"),
        ("", "nightly", "2.0 or later"),
    ],
)
def test_what_pytorch_refuses_is_refused_with_a_way_out(text: str, version: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text, version)
