"""The gate's answer as SARIF 2.1.0, which code scanning services read.

The format: docs.oasis-open.org/sarif/sarif/v2.1.0. GitHub's support for it:
docs.github.com/code-security/reference/code-scanning/sarif-files/sarif-support-for-code-scanning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from xmem.gate.judge import CheckOutcome, Finding, Rule
from xmem.reports.gate.places import place_of
from xmem.reports.gate.text import shown_rows, title

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_RULES = {
    Rule.OVER_BUDGET: (
        "OverBudget",
        "A job needs more GPU memory than its budget.",
        "Free what the finding names as the largest holders at the peak, or raise the budget on purpose.",
    ),
    Rule.DOES_NOT_FIT: (
        "DoesNotFit",
        "A job does not fit on its GPU.",
        "Lower what the finding names as the largest holders at the peak, or name a larger GPU.",
    ),
    Rule.GREW: (
        "Grew",
        "A job needs more GPU memory than its baseline allows.",
        "Look at what grew; if it is meant to, write the baseline again with `check --update-baseline`.",
    ),
    Rule.NO_ANSWER: (
        "NoAnswer",
        "The GPU memory of a job could not be estimated.",
        "The message says why, and what to do about it.",
    ),
}


def sarif_log(outcomes: Sequence[CheckOutcome], version: str) -> dict[str, Any]:
    """Return the log as plain Python objects.

    Args:
        outcomes: The jobs that were judged.
        version: Version of this package.
    """
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "xmem-fast",
                        "semanticVersion": version,
                        "rules": [_rule(rule) for rule in Rule],
                    }
                },
                "automationDetails": {"id": "xmem-fast/check/"},
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {"executionSuccessful": all(outcome.estimate is not None for outcome in outcomes)}
                ],
                "results": [_result(outcome, found) for outcome in outcomes for found in outcome.findings],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    name, summary, advice = _RULES[rule]
    return {
        "id": rule.value,
        "name": name,
        "shortDescription": {"text": summary},
        "fullDescription": {"text": f"{summary} {advice}"},
        "help": {"text": advice},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["performance", "gpu-memory"]},
    }


def _result(outcome: CheckOutcome, finding: Finding) -> dict[str, Any]:
    sentences = [f"{title(outcome)}: {finding.message}."]
    for words, rows in shown_rows(finding):
        sentences.append(f"{words.capitalize()}: {', '.join(f'{size} {name}' for size, name in rows)}.")
    place = place_of(finding, outcome.source)
    location = None if place is None else {
        "artifactLocation": {"uri": quote(place.path), "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": place.line},
    }  # fmt: skip
    return {
        "ruleId": finding.rule.value,
        "ruleIndex": list(Rule).index(finding.rule),
        "level": "error",
        "message": {"text": "\n".join(sentences)},
        "locations": [] if location is None else [{"physicalLocation": location}],
        "partialFingerprints": {"xmemCheck/v1": _fingerprint(outcome, finding)},
        "properties": {
            "job": outcome.name,
            "gpu": None if outcome.estimate is None else outcome.estimate.target.gpu,
            "metric": outcome.limits.metric.value,
            "bytes": outcome.bytes,
        },
    }


def _fingerprint(outcome: CheckOutcome, finding: Finding) -> str:
    """Return a fingerprint of a job's limit that depends neither on the figures nor on the line."""
    gpu = "" if outcome.estimate is None else outcome.estimate.target.gpu or ""
    identity = "\0".join((finding.rule.value, outcome.name, gpu, outcome.limits.metric.value))
    return hashlib.sha256(identity.encode()).hexdigest()[:32]
