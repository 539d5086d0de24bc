#include "trace/parsing/frame_name.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace xmem::trace {
namespace {

constexpr std::size_t kKnownFrames = 4096;
constexpr std::size_t kLongestKnownFrame = 512;

// First components of the paths of installed code, as the profiler writes them: it cuts the folders of sys.path off.
// Sorted.
constexpr std::array<std::string_view, 103> kInstalled{"PIL",
                                                       "abc",
                                                       "accelerate",
                                                       "apex",
                                                       "ast",
                                                       "asyncio",
                                                       "bisect",
                                                       "codecs",
                                                       "collections",
                                                       "concurrent",
                                                       "contextlib",
                                                       "copy",
                                                       "copyreg",
                                                       "ctypes",
                                                       "dataclasses",
                                                       "datasets",
                                                       "datetime",
                                                       "decimal",
                                                       "deepspeed",
                                                       "diffusers",
                                                       "einops",
                                                       "enum",
                                                       "filelock",
                                                       "fsspec",
                                                       "functools",
                                                       "genericpath",
                                                       "gzip",
                                                       "hashlib",
                                                       "heapq",
                                                       "huggingface_hub",
                                                       "ignite",
                                                       "importlib",
                                                       "inspect",
                                                       "io",
                                                       "json",
                                                       "lightning",
                                                       "lightning_fabric",
                                                       "linecache",
                                                       "locale",
                                                       "logging",
                                                       "matplotlib",
                                                       "multiprocessing",
                                                       "numbers",
                                                       "numpy",
                                                       "operator",
                                                       "os",
                                                       "packaging",
                                                       "pandas",
                                                       "pathlib",
                                                       "peft",
                                                       "pickle",
                                                       "platform",
                                                       "posixpath",
                                                       "pprint",
                                                       "pytorch_lightning",
                                                       "queue",
                                                       "random",
                                                       "re",
                                                       "reprlib",
                                                       "runpy",
                                                       "safetensors",
                                                       "scipy",
                                                       "selectors",
                                                       "shutil",
                                                       "signal",
                                                       "site",
                                                       "sklearn",
                                                       "socket",
                                                       "sre_compile",
                                                       "sre_parse",
                                                       "ssl",
                                                       "statistics",
                                                       "string",
                                                       "subprocess",
                                                       "sympy",
                                                       "tempfile",
                                                       "tensorboard",
                                                       "textwrap",
                                                       "threading",
                                                       "timm",
                                                       "tokenize",
                                                       "tokenizers",
                                                       "torch",
                                                       "torchaudio",
                                                       "torchdata",
                                                       "torchmetrics",
                                                       "torchvision",
                                                       "tqdm",
                                                       "traceback",
                                                       "transformers",
                                                       "triton",
                                                       "trl",
                                                       "types",
                                                       "typing",
                                                       "unittest",
                                                       "urllib",
                                                       "uuid",
                                                       "wandb",
                                                       "warnings",
                                                       "weakref",
                                                       "xmem",
                                                       "yaml",
                                                       "zipfile"};
static_assert(std::ranges::is_sorted(kInstalled));

bool is_installed(std::string_view path) {
  for (const std::string_view folder : {"site-packages/", "dist-packages/", "lib/python3"}) {
    if (path.find(folder) != std::string_view::npos) return true;
  }
  const std::size_t slash = path.find('/');
  const std::string_view first =
      slash == std::string_view::npos ? path.substr(0, path.size() - 3) : path.substr(0, slash);
  return std::ranges::binary_search(kInstalled, first);
}

}  // namespace

std::size_t python_file_end(std::string_view frame) {
  constexpr std::string_view kOpen = ".py(";
  for (std::size_t at = frame.find(kOpen); at != std::string_view::npos; at = frame.find(kOpen, at + 1)) {
    const std::size_t line = at + kOpen.size();
    const std::size_t after = frame.find_first_not_of("0123456789", line);
    if (after != std::string_view::npos && after > line && frame.substr(after).starts_with("): ")) return line - 1;
  }
  return std::string_view::npos;
}

bool is_user_frame(std::string_view frame) {
  const std::size_t file_end = python_file_end(frame);
  return file_end != std::string_view::npos && !frame.starts_with('<') && !is_installed(frame.substr(0, file_end));
}

UserFrames::UserFrames() : known_(kKnownFrames) {}

bool UserFrames::contains(std::string_view frame) {
  if (frame.size() > kLongestKnownFrame) return is_user_frame(frame);
  Known& known = known_[std::hash<std::string_view>{}(frame) % kKnownFrames];
  if (known.frame != frame) {
    known.frame.assign(frame);
    known.is_user = is_user_frame(frame);
  }
  return known.is_user;
}

}  // namespace xmem::trace
