#!/bin/sh
# Fuzzes every target: with libFuzzer where a clang has it, else with the driver of tests/fuzz/standalone_main.cpp. What
# breaks a target is kept in build/fuzz/findings, what covers new code in build/fuzz/corpus.
#
# Usage: tools/fuzz.sh seconds N    an equal share of N seconds for each target, with inputs that nobody has tried
#        tools/fuzz.sh runs N       N inputs for each target, the same at every run from the same corpus
set -eu
cd "$(dirname "$0")/.."
targets="event_splitter:traces read_trace:traces stages:traces replay:requests recording:recordings pickle:pickles"
case $1 in
  seconds) bound="-max_total_time=$(($2 / $(echo "$targets" | wc -w) + 1))" ;;
  runs) bound="-seed=1 -runs=$2" ;;
  *) echo "usage: tools/fuzz.sh seconds|runs N" >&2; exit 2 ;;
esac

folder=$(sh tools/sanitized_build.sh fuzz_targets)
[ "$folder" = build/fuzz ] || echo "no clang with libFuzzer: fuzzing with the standalone driver" >&2

mkdir -p build/fuzz/findings
# As many targets at once as there are processors; one that fails ends the rest.
# shellcheck disable=SC2016  # of the inner shell
for target in $targets; do echo "$target"; done | xargs -n 1 -P "$(nproc)" sh -c '
  name=${3%:*}
  mkdir -p "build/fuzz/corpus/$name"
  "$1/tests/fuzz/fuzz_$name" $2 -timeout=20 -rss_limit_mb=2048 \
    -print_final_stats=1 -verbosity=0 "-artifact_prefix=build/fuzz/findings/$name-" \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/${3#*:}" || exit 255
' fuzz "$folder" "$bound"
