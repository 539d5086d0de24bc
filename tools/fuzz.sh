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

# The newest clang that can link libFuzzer and the sanitizers; empty where there is none.
find_clang() {
  probe=$(mktemp -d)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' > "$probe/target.cpp"
  for version in "" -22 -21 -20 -19 -18 -17 -16 -15 -14; do
    if "clang++$version" -fsanitize=fuzzer,address,undefined "$probe/target.cpp" -o "$probe/target" 2> /dev/null; then
      echo "clang$version clang++$version"
      break
    fi
  done
  rm -r "$probe"
}

compilers=$(find_clang)
if [ -n "$compilers" ]; then
  preset=fuzz
  set -- "-DCMAKE_C_COMPILER=${compilers% *}" "-DCMAKE_CXX_COMPILER=${compilers#* }"
else
  echo "no clang with libFuzzer: fuzzing with the standalone driver" >&2
  preset=asan
  set --
fi
cmake --preset "$preset" "$@" > /dev/null
cmake --build --preset "$preset" --target fuzz_targets

mkdir -p build/fuzz/findings
for target in $targets; do
  name=${target%:*}
  mkdir -p "build/fuzz/corpus/$name"
  # shellcheck disable=SC2086  # the bound is one or two options
  "build/$preset/tests/fuzz/fuzz_$name" $bound -timeout=20 -rss_limit_mb=2048 \
    -print_final_stats=1 -verbosity=0 "-artifact_prefix=build/fuzz/findings/$name-" \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/${target#*:}"
done
