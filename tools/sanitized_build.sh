#!/bin/sh
# Builds the core, its tests and the fuzz targets under the address and undefined-behaviour sanitizers, and prints the
# folder of the build: build/fuzz, with libFuzzer, where a clang has it, else build/asan with the compiler of the system.
#
# Usage: tools/sanitized_build.sh [TARGET]    everything by default
set -eu
target=${1:-all}
cd "$(dirname "$0")/.."

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
  preset=asan
  set --
fi
cmake --preset "$preset" "$@" >&2
cmake --build --preset "$preset" --target "$target" >&2
echo "build/$preset"
