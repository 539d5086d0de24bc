"""The readers of traces that are compared, each in a process of its own.

    python bench/readers.py READER FILE

Prints one JSON object: seconds of its imports, seconds of reading, and what it found in the file. What a
reader is asked for is what its users get first: xmem and Holistic Trace Analysis columns, the general JSON
parsers the parsed document (no columns yet, which is in their favour), ijson one event after the other. What
it found is counted afterwards, untimed, except by ijson, which keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEMORY_CATEGORY = "cpu_instant_event"
XMEM_CATEGORIES = {
    "operator": "cpu_op",
    "annotation": "user_annotation",
    "module_frame": "python_function",
    "user_frame": "python_function",
    "memory": MEMORY_CATEGORY,
}
"""Kinds of events that xmem keeps, as the categories of synthetic traces; the rest it counts by category."""


@dataclass(frozen=True)
class Answer:
    """What a reader found: readers agree in what they both can say.

    Attributes:
        events: Events by category.
        memory_events: How many, None where the reader drops them.
        allocated_bytes: Sum of the allocations of the memory events.
        freed_bytes: Sum of the frees.
    """

    events: dict[str, int]
    memory_events: int | None = None
    allocated_bytes: int | None = None
    freed_bytes: int | None = None


Read = Callable[[Path], Any]
Summarize = Callable[[Any], Answer]


def count_events(events: Iterable[Mapping[str, Any]]) -> Answer:
    categories: Counter[str] = Counter()
    memory_events = allocated = freed = 0
    for event in events:
        categories[event["cat"]] += 1
        if event["name"] == "[memory]":
            memory_events += 1
            signed = event["args"]["Bytes"]
            allocated += max(signed, 0)
            freed += max(-signed, 0)
    return Answer(dict(categories), memory_events, allocated, freed)


def xmem() -> tuple[Read, Summarize]:
    from xmem import Trace, read_trace

    def summarize(trace: Trace) -> Answer:
        events: Counter[str] = Counter()
        for kind, count in trace.counts.items():
            events[XMEM_CATEGORIES.get(kind, kind)] += count
        signed = trace.memory.bytes
        return Answer(
            dict(events), len(signed), int(signed[signed > 0].sum()), -int(signed[signed < 0].sum())
        )

    return read_trace, summarize


def python_json() -> tuple[Read, Summarize]:
    return lambda path: json.loads(path.read_bytes()), lambda document: count_events(document["traceEvents"])


def orjson() -> tuple[Read, Summarize]:
    import orjson

    return (
        lambda path: orjson.loads(path.read_bytes()),
        lambda document: count_events(document["traceEvents"]),
    )


def pysimdjson() -> tuple[Read, Summarize]:
    import simdjson

    parser = simdjson.Parser()
    return parser.load, lambda document: count_events(document["traceEvents"])


def ijson() -> tuple[Read, Summarize]:
    import ijson

    def read(path: Path) -> Answer:
        with path.open("rb") as file:
            return count_events(ijson.items(file, "traceEvents.item", use_float=True))

    return read, lambda answer: answer


def polars() -> tuple[Read, Summarize]:
    import polars

    def summarize(document: polars.DataFrame) -> Answer:
        events = document["traceEvents"].explode().struct.unnest()
        categories = events["cat"].value_counts()
        signed = events.filter(polars.col("name") == "[memory]")["args"].struct.field("Bytes")
        return Answer(
            dict(zip(categories["cat"], categories["count"], strict=True)),
            len(signed),
            signed.filter(signed > 0).sum(),
            -signed.filter(signed < 0).sum(),
        )

    return lambda path: polars.read_json(path, infer_schema_length=None), summarize


def holistic_trace_analysis() -> tuple[Read, Summarize]:
    from hta.common.trace import parse_trace_file

    def summarize(parsed: Any) -> Answer:
        _, frame, symbols = parsed
        names = symbols.get_sym_table()
        return Answer(
            {names[category]: int(count) for category, count in frame["cat"].value_counts().items()}
        )

    return lambda path: parse_trace_file(str(path)), summarize


READERS: dict[str, Callable[[], tuple[Read, Summarize]]] = {
    "xmem": xmem,
    "pysimdjson": pysimdjson,
    "polars": polars,
    "orjson": orjson,
    "json": python_json,
    "ijson": ijson,
    "hta": holistic_trace_analysis,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a trace with one reader.")
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()

    began = time.perf_counter()
    read, summarize = READERS[options.reader]()
    imported = time.perf_counter()
    result = read(options.file)
    done = time.perf_counter()
    answer = asdict(summarize(result))
    # At once: taking millions of Python objects apart is not reading.
    print(json.dumps({"import_s": imported - began, "read_s": done - imported, "answer": answer}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
