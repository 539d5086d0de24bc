"""Write the corpus of the fuzz targets: small files, each named by what is odd about it.

Run it after a change of the cases: `python tests/fuzz/make_corpus.py`. Same cases, same bytes.
"""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

from xmem.testing.trace_builder import TraceBuilder

CORPUS = Path(__file__).parent / "corpus"

ENGINE = "autograd::engine::evaluate_function: AddmmBackward0"
SPAN = b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":1.5,"dur":2}'
ALLOCATION = b'{"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":2,"args":{"Bytes":512,"Addr":64}}'
FREE = b'{"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":3,"args":{"Bytes":-512,"Addr":64}}'


def training() -> TraceBuilder:
    """One step of training a linear layer."""
    return (
        TraceBuilder()
        .alloc(0x50, 4096, 1)
        .operator("aten::linear", 10, 30, sequence_number=0, input_types=["float", ""])
        .alloc(0x1000, 1024, 20)
        .operator(ENGINE, 40, 60, sequence_number=0)
        .alloc(0x2000, 1024, 50)
        .free(0x1000, 55)
        .annotation("Optimizer.step#SGD.step", 70, 80)
        .annotation("Optimizer.zero_grad#SGD.zero_grad", 90, 99)
        .free(0x2000, 95)
    )


def captured() -> TraceBuilder:
    """The same with what our capture adds."""
    return (
        training()
        .iteration(0, 0, 100)
        .module("Net.body", 10, 30)
        .line("train.py", 12, 10, 35)
        .host(36, 39)
        .tensor("parameter", "Net.body.weight", 0x50, 4096, 5)
    )


def events(*texts: bytes) -> bytes:
    """A document of these elements of the event array."""
    return b'{"traceEvents":[' + b",".join(texts) + b"]}"


def changed(old: bytes, new: bytes, text: bytes = SPAN) -> bytes:
    """A document of one event with a part of it replaced, between two good ones."""
    assert old in text
    return events(ALLOCATION, text.replace(old, new, 1), FREE)


def memory(**args: object) -> bytes:
    """A memory instant with these arguments."""
    named = {name.replace("_", " "): value for name, value in args.items()}
    return json.dumps({"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 4, "args": named}).encode()


PRETTY = training().bytes()

TRACES: dict[str, dict[str, bytes]] = {
    "files": {  # Shapes of whole files.
        "empty": b"",
        "blank": b" \n\t",
        "no_events": events(),
        "pretty_printed": PRETTY,
        "compact": training().bytes("compact"),
        "bare_list_of_2021": training().bytes("2021"),
        "with_capture_metadata": captured().bytes("compact"),
        "byte_order_mark": b"\xef\xbb\xbf" + events(SPAN, ALLOCATION, FREE),
        "keys_after_the_events": events(SPAN)[:-1] + b',"xmem":{"format":1},"traceName":"t"}',
        "two_event_arrays": events(SPAN)[:-1] + b',"traceEvents":[' + ALLOCATION + b"]}",
        "odd_top_level_keys": b'{"odd \\" key":{"a":["]","}"]},"":null,"n":-1e5,' + events(SPAN)[1:],
        "events_no_array": b'{"traceEvents":7}',
        "no_trace": b'{"a":1}',
        "text_after_the_document": events(SPAN) + b"\n]}garbage",
    },
    "cut": {  # Files that were cut.
        "cut_in_an_event": PRETTY[: PRETTY.index(b"Record function id")],
        "cut_after_an_event": PRETTY[: PRETTY.rindex(b"}\n  ]")],
        "cut_in_the_header": PRETTY[:30],
        "cut_in_an_escape": b'[{"ph":"X","name":"a\\',
    },
    "memory": {  # Memory instants.
        "no_addresses": events(memory(Bytes=8), memory(Bytes=8), memory(Bytes=-8), memory(Bytes=-8)),
        "rocm": events(memory(Bytes=64, Addr=1, Device_Type=6, Device_Id=0, Total_Reserved=128)),
        "warm_start": events(FREE, ALLOCATION),
        "lost_free": events(ALLOCATION, ALLOCATION, FREE),
        "free_of_another_size": events(ALLOCATION, FREE.replace(b"-512", b"-8")),
        "zero_bytes": events(memory(Bytes=0, Addr=1)),
        "bytes_of_the_largest_integers": events(
            *(memory(Bytes=sign * (2**63 - 1), Addr=at) for at in (1, 2) for sign in (1, -1))
        ),
        "bytes_of_the_least_integer": events(memory(Bytes=-(2**63), Addr=1), memory(Bytes=-(2**63))),
        "integers_beyond_int64": events(
            memory(Bytes=2**63, Addr=2**64 - 1), memory(Bytes=2**64, Addr=2**64), memory(Bytes=1, Addr=2**63)
        ),
        "device_out_of_range": events(
            memory(Bytes=1, Addr=1, Device_Type=257, Device_Id=2**32), memory(Bytes=1, Device_Type=-129)
        ),
        "quoted_numbers": events(memory(Bytes="512", Addr="64"), memory(Bytes=8, Addr="64", Device_Type="1")),
        "arguments_before_the_name": events(
            b'{"args":{"Addr":16,"Bytes":-64,"x":{"Bytes":1}},"ts":1,"name":"[memory]","ph":"i"}'
        ),
        "arguments_no_object": changed(b'{"Bytes":512,"Addr":64}', b'[{"Bytes":512}]', ALLOCATION),
    },
    "times": {  # Times.
        "times_at_the_limit": events(
            SPAN.replace(b"1.5", b"9223372036854775.807").replace(b'"dur":2', b'"dur":9223372036854775.807'),
            SPAN.replace(b"1.5", b"9223372036854775.808"),
            SPAN.replace(b"1.5", b"-9223372036854775.807"),
        ),
        "times_with_exponents": events(
            *(
                SPAN.replace(b"1.5", time)
                for time in (b"1e3", b"1.5E-3", b"1e40", b"1e999999999999", b"0e-41")
            )
        ),
        "nan_and_infinity": events(
            *(SPAN.replace(b"1.5", time) for time in (b"NaN", b"-Infinity", b"Infinity", b"nan", b"-"))
        ),
        "negative_duration": changed(b'"dur":2', b'"dur":-2'),
        "no_duration": changed(b',"dur":2', b""),
        "null_fields": events(SPAN.replace(b'"aten::add"', b"null"), SPAN.replace(b"1.5", b"null")),
    },
    "strings": {  # Strings.
        "control_characters": changed(b"aten::add", b"a\x01\x00\x1f\nb"),
        "invalid_utf8": changed(b"aten::add", b"\xff\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80"),
        "escaped_zero": changed(b"aten::add", b"a\\u0000b"),
        "unpaired_surrogate": changed(b"aten::add", b"\\ud83d\\u0041 \\udc00"),
        "odd_escapes": changed(b"aten::add", b'\\x\\u12\\\\\\"'),
        "backslashes_outside_strings": changed(b'"tid":1', b'"tid":\\"1\\'),
        "braces_in_strings": changed(b"aten::add", b'} ] { [ \\" },{'),
        "escaped_keys": changed(b'"ph"', b'"\\u0070h"'),
        "empty_strings": changed(b'"aten::add"', b'""').replace(b'"cat":"cpu_op"', b'"cat":""'),
        "huge_string": changed(b"aten::add", b"a" * 3500),
        "non_ascii_names": changed(b"aten::add", "cafe\u0301 \u2603 \U0001f525".encode()),
    },
    "structure": {  # Structure.
        "duplicate_keys": changed(
            b'"ts":1.5', b'"ts":1.5,"ts":9,"name":"other","args":{},"args":{"Ev Idx":3}'
        ),
        "deep_arrays": changed(b'"dur":2', b'"args":{"Input type":' + b"[" * 1200 + b"]" * 1200 + b"}"),
        "deep_objects": changed(b'"dur":2', b'"x":' + b'{"a":' * 300 + b"1" + b"}" * 300),
        "elements_that_are_no_events": events(b"1", b'"two"', b"[3,{}]", b"null", SPAN, b"{}"),
        "commas_too_many": events(SPAN, b"", b"", ALLOCATION, b""),
        "commas_missing": events(SPAN + ALLOCATION + FREE),
        "stray_closing_brace": events(SPAN + b"}", ALLOCATION),
        "stray_closing_bracket": changed(b'"dur":2', b'"args":{"Input type":["a"]]}'),
        "lost_opening_quote": changed(b'"aten::add"', b'aten::add"'),
        "lost_closing_quote": changed(b'"aten::add"', b'"aten::add'),
        "lost_quote_pretty_printed": PRETTY.replace(b'"aten::linear"', b'"aten::linear', 1),
        "lost_closing_brace": changed(b'"dur":2}', b'"dur":2'),
        "lost_opening_brace": changed(b'{"ph"', b'"ph"'),
        "two_lost_quotes": events(SPAN[:-20], ALLOCATION, FREE, SPAN.replace(b'"cat"', b'"cat', 1), FREE),
        "lost_quotes_that_hide_each_other": events(
            ALLOCATION.replace(b'"pid":1', b'"p'),
            SPAN.replace(b'"dur":', b'"dur[:'),
            FREE.replace(b'"Addr":64}}', b'id":0}}'),
            SPAN.replace(b'"dur":', b'"dur[:'),
            FREE,
        ),
    },
    "order": {  # Events that break ties, cross, and link.
        "equal_times": events(*(SPAN.replace(b"1.5", b"1") for _ in range(3)), ALLOCATION, ALLOCATION),
        "numbered_backwards": events(
            *(memory(**{"Bytes": 8, "Addr": at, "Ev Idx": 3 - at}) for at in (1, 2, 3)),
        ),
        "crossing_spans": TraceBuilder()
        .operator("a", 0, 5)
        .operator("b", 3, 9)
        .alloc(1, 8, 4)
        .bytes("compact"),
        "backward_without_forward": TraceBuilder()
        .backward("MulBackward0", 1, 5, sequence_number=7)
        .bytes("compact"),
        "several_threads": training()
        .on(7, "other")
        .operator("aten::mul", 1, 2)
        .alloc(9, 8, 1)
        .bytes("compact"),
    },
}


def histories() -> dict[str, bytes]:
    """Inputs of the replay target: a head of settings, then calls. Random bytes are as good as any."""
    heads = {
        "plain": bytes([0, 2, 0, 0]),
        "expandable": bytes([1, 2, 1, 8, 0]),
        "expandable_small_device": bytes([1, 0, 1, 4, 0]),
        "limited": bytes([64, 1, 128, 1, 12, 0]),
        "garbage_collected": bytes([96, 2, 100, 200, 1, 10, 0]),
        "rounded": bytes([128, 2, *range(16), 0, 0]),
        "maximum_split": bytes([8, 2, 26, 0, 0, 0, 0, 0, 0]),
        "other_segments": bytes([4, 2, 25, 0, 0, 0, 0, 1, 15, 0]),
        "rejects": bytes([66, 2, 10, 1, 14, 0]),
        "nothing_fits": bytes([0, 2, 1, 0, 1, 22, 0, 0, 0, 0]),
    }
    return {name: head + random.Random(name).randbytes(900) for name, head in heads.items()}


def recordings() -> dict[str, bytes]:
    """Inputs of the recording target: settings, a number of changes, then calls."""
    heads = {
        f"{name}_{changes}_changes": bytes([expandable, capacity, changes])
        for name, expandable, capacity in (("plain", 0, 12), ("expandable", 1, 12), ("full", 0, 3))
        for changes in (0, 1, 3)
    }
    return {name: head + random.Random(name).randbytes(400) for name, head in heads.items()}


def pickles() -> dict[str, bytes]:
    """Small snapshots as every protocol writes them, and what a reader must not build."""
    event = {"action": "alloc", "addr": 1 << 44, "size": 512, "stream": 0, "frames": [{"line": -7}], "f": 0.5}
    snapshot = {"segments": [], "device_traces": [[event, dict(event)]], "pool": (0, 0), "none": [None, True]}
    return {
        **{f"protocol_{number}": pickle.dumps(snapshot, number) for number in range(6)},
        "imports": b"cos\nsystem\n(S'true'\ntR.",
        "imports_by_stack": pickle.dumps(print),
        "memo_of_2_to_the_31": b"\x80\x02Nr\xff\xff\xff\x7f.",
        "string_longer_than_the_file": b"\x80\x04\x8d" + (1 << 40).to_bytes(8, "little") + b"a.",
        "integer_of_5000_digits": b"I" + b"7" * 3500 + b"\n.",
        "deep_lists": b"]" * 200 + b"a" * 199 + b".",
        "a_list_in_itself": b"]q\0h\0a.",
        "shared_level_by_level": b"]" + b"2\x86" * 60 + b".",
        "marks": b"(((((((((2.",
    }


def corpus() -> dict[Path, bytes]:
    """Every file of the corpus and what it holds."""
    return {
        **{
            CORPUS / "traces" / subject / f"{name}.json": text
            for subject, texts in TRACES.items()
            for name, text in texts.items()
        },
        **{CORPUS / "requests" / f"{name}.bin": data for name, data in histories().items()},
        **{CORPUS / "recordings" / f"{name}.bin": data for name, data in recordings().items()},
        **{CORPUS / "pickles" / f"{name}.pickle": data for name, data in pickles().items()},
    }


def main() -> None:
    """Write them, and remove what is no longer a case."""
    files = corpus()
    for path in (path for path in CORPUS.rglob("*.*") if path not in files):
        path.unlink()
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
