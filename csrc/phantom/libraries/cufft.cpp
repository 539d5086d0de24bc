// cuFFT: plans and their work areas.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "libraries/cufft_sizes.hpp"
#include "libraries/data_type.hpp"
#include "loading/loaded.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "memory/device_memory.hpp"
#include "runtime/launch_log.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr char kLibrary[] = "libcufft.so";
constexpr int kOk = 0;
constexpr int kInvalidPlan = 1;
constexpr int kAllocationFailed = 2;
constexpr int kInvalidValue = 4;
constexpr int kSetupFailed = 7;

enum Type { kR2C = 0x2a, kC2R = 0x2c, kC2C = 0x29, kD2Z = 0x6a, kZ2D = 0x6c, kZ2Z = 0x69 };

struct Plan {
  void* stream = nullptr;
  bool allocates = true;
  std::size_t work_bytes = 0;
  void* work_area = nullptr;  // ours
};

struct Plans {
  std::mutex mutex;
  std::map<int, Plan> open;
  int next = 1;
};

Plans& plans() {
  static auto* kept = new Plans();  // never destroyed: PyTorch destroys plans from exit handlers
  return *kept;
}

template <typename Int>
Transform described(int rank, const Int* sizes, int type, std::int64_t batch) {
  Transform transform;
  transform.rank = std::clamp(rank, 1, 3);
  for (int i = 0; i < transform.rank; ++i) transform.sizes[static_cast<unsigned>(i)] = sizes[i];
  transform.real = type == kR2C || type == kC2R || type == kD2Z || type == kZ2D;
  transform.complex_bytes = type == kD2Z || type == kZ2D || type == kZ2Z ? 16 : 8;
  transform.batch = batch;
  return transform;
}

// An embedding says that strides count; without one the data is dense.
template <typename Int>
Transform laid_out(Transform transform, const Int* input_embedding, Int input_stride, const Int* output_embedding,
                   Int output_stride) {
  const auto apart = [](const Int* embedding, Int stride) { return embedding != nullptr && stride != 1; };
  transform.strided = apart(input_embedding, input_stride) || apart(output_embedding, output_stride);
  return transform;
}

// The rules are those of CUDA 13. Older releases took a copy of the complex data in two and three dimensions, whether
// in place or not (github.com/JuliaGPU/CUDA.jl issue 894, 512 x 512 with 1 and 32 batches; arrayfire issue 1443, 100 x
// 100 to 100 x 1500). Which release ended that is not known: all of CUDA 12 are taken to do it.
std::size_t planned_bytes(const Transform& transform) {
  const std::size_t work = work_bytes_of(transform);
  if (transform.rank == 1 || loaded_version(kLibrary, "cufftGetProperty").major >= 12) return work;
  const auto last = static_cast<unsigned>(transform.rank - 1);
  std::int64_t elements = transform.batch;
  for (unsigned i = 0; i < last; ++i) elements *= transform.sizes[i];
  elements *= transform.real ? transform.sizes[last] / 2 + 1 : transform.sizes[last];
  return std::max(work, static_cast<std::size_t>(elements) * transform.complex_bytes);
}

// What cuFFT says to it, before there is a plan.
int refused(const Transform& transform) {
  const bool possible = transform.batch > 0 && *std::min_element(transform.sizes.begin(), transform.sizes.end()) > 0;
  return possible ? refusal_of(transform) : kInvalidValue;
}

int create(int* handle) {
  if (!machine().has(current_device())) return kSetupFailed;
  ensure_context(current_device());
  Plans& kept = plans();
  const std::lock_guard lock(kept.mutex);
  *handle = kept.next++;
  kept.open[*handle] = {};
  return kOk;
}

int make(int handle, const Transform& transform, std::size_t* work) {
  if (const int error = refused(transform); error != kOk) return error;
  Plans& kept = plans();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.open.find(handle);
  if (found == kept.open.end()) return kInvalidPlan;
  Plan& plan = found->second;
  plan.work_bytes = planned_bytes(transform);
  if (work != nullptr) *work = plan.work_bytes;
  if (plan.allocates && allocate(current_device(), plan.work_bytes, &plan.work_area, Use::kLibrary) != kSuccess) {
    return kAllocationFailed;
  }
  return kOk;
}

int create_and_make(int* handle, const Transform& transform) {
  if (const int error = create(handle); error != kOk) return error;
  return make(*handle, transform, nullptr);
}

int estimate(const Transform& transform, std::size_t* work) {
  if (const int error = refused(transform); error != kOk) return error;
  *work = planned_bytes(transform);
  return kOk;
}

// The types of both sides and of the computation: halves take four bytes for a complex number.
Transform described_by_types(int rank, const long long* sizes, int input, int output, long long batch, int execution) {
  constexpr int kHighestReal = 2;  // CUDA_R_32F, CUDA_R_64F, CUDA_R_16F; and CUDA_R_16BF
  const auto is_real = [](int type) { return type <= kHighestReal || type == 14; };
  Transform transform = described(rank, sizes, kC2C, batch);
  transform.real = is_real(input) || is_real(output);
  transform.complex_bytes = bytes_of(execution) * (is_real(execution) ? 2 : 1);
  return transform;
}

// Runs a plan: nothing but a launch.
int execute(Function function, int handle) {
  void* stream = nullptr;
  {
    Plans& kept = plans();
    const std::lock_guard lock(kept.mutex);
    const auto found = kept.open.find(handle);
    if (found == kept.open.end()) return kInvalidPlan;
    stream = found->second.stream;
  }
  called(function, stream);
  return kOk;
}

// Changes a plan under its lock.
template <typename Change>
int with_plan(int handle, Change change) {
  Plans& kept = plans();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.open.find(handle);
  if (found == kept.open.end()) return kInvalidPlan;
  change(found->second);
  return kOk;
}

}  // namespace

PHANTOM_EXPORT int cufftCreate(int* handle) {
  note(Function::cufftCreate);
  return create(handle);
}

PHANTOM_EXPORT int cufftDestroy(int handle) {
  note(Function::cufftDestroy);
  Plans& kept = plans();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.open.find(handle);
  if (found == kept.open.end()) return kInvalidPlan;
  release(found->second.work_area);
  kept.open.erase(found);
  return kOk;
}

PHANTOM_EXPORT int cufftSetStream(int handle, void* stream) {
  note(Function::cufftSetStream);
  return with_plan(handle, [stream](Plan& plan) { plan.stream = stream; });
}

PHANTOM_EXPORT int cufftSetAutoAllocation(int handle, int allocates) {
  note(Function::cufftSetAutoAllocation);
  return with_plan(handle, [allocates](Plan& plan) { plan.allocates = allocates != 0; });
}

PHANTOM_EXPORT int cufftSetWorkArea(int handle, void*) {
  note(Function::cufftSetWorkArea);
  return with_plan(handle, [](Plan& plan) {
    release(plan.work_area);
    plan.work_area = nullptr;
  });
}

PHANTOM_EXPORT int cufftGetSize(int handle, std::size_t* work) {
  note(Function::cufftGetSize);
  return with_plan(handle, [work](const Plan& plan) { *work = plan.work_bytes; });
}

PHANTOM_EXPORT int cufftPlan1d(int* handle, int n, int type, int batch) {
  note(Function::cufftPlan1d);
  return create_and_make(handle, described(1, &n, type, batch));
}

PHANTOM_EXPORT int cufftPlan2d(int* handle, int n0, int n1, int type) {
  note(Function::cufftPlan2d);
  const int sizes[] = {n0, n1};
  return create_and_make(handle, described(2, sizes, type, 1));
}

PHANTOM_EXPORT int cufftPlan3d(int* handle, int n0, int n1, int n2, int type) {
  note(Function::cufftPlan3d);
  const int sizes[] = {n0, n1, n2};
  return create_and_make(handle, described(3, sizes, type, 1));
}

PHANTOM_EXPORT int cufftPlanMany(int* handle, int rank, int* sizes, int* inembed, int istride, int, int* onembed,
                                 int ostride, int, int type, int batch) {
  note(Function::cufftPlanMany);
  return create_and_make(handle, laid_out(described(rank, sizes, type, batch), inembed, istride, onembed, ostride));
}

PHANTOM_EXPORT int cufftMakePlan1d(int handle, int n, int type, int batch, std::size_t* work) {
  note(Function::cufftMakePlan1d);
  return make(handle, described(1, &n, type, batch), work);
}

PHANTOM_EXPORT int cufftMakePlan2d(int handle, int n0, int n1, int type, std::size_t* work) {
  note(Function::cufftMakePlan2d);
  const int sizes[] = {n0, n1};
  return make(handle, described(2, sizes, type, 1), work);
}

PHANTOM_EXPORT int cufftMakePlan3d(int handle, int n0, int n1, int n2, int type, std::size_t* work) {
  note(Function::cufftMakePlan3d);
  const int sizes[] = {n0, n1, n2};
  return make(handle, described(3, sizes, type, 1), work);
}

PHANTOM_EXPORT int cufftMakePlanMany(int handle, int rank, int* sizes, int* inembed, int istride, int, int* onembed,
                                     int ostride, int, int type, int batch, std::size_t* work) {
  note(Function::cufftMakePlanMany);
  return make(handle, laid_out(described(rank, sizes, type, batch), inembed, istride, onembed, ostride), work);
}

PHANTOM_EXPORT int cufftMakePlanMany64(int handle, int rank, long long* sizes, long long* inembed, long long istride,
                                       long long, long long* onembed, long long ostride, long long, int type,
                                       long long batch, std::size_t* work) {
  note(Function::cufftMakePlanMany64);
  return make(handle, laid_out(described(rank, sizes, type, batch), inembed, istride, onembed, ostride), work);
}

PHANTOM_EXPORT int cufftXtMakePlanMany(int handle, int rank, long long* sizes, long long* inembed, long long istride,
                                       long long, int input, long long* onembed, long long ostride, long long,
                                       int output, long long batch, std::size_t* work, int execution) {
  note(Function::cufftXtMakePlanMany);
  return make(
      handle,
      laid_out(described_by_types(rank, sizes, input, output, batch, execution), inembed, istride, onembed, ostride),
      work);
}

PHANTOM_EXPORT int cufftEstimate1d(int n, int type, int batch, std::size_t* work) {
  note(Function::cufftEstimate1d);
  return estimate(described(1, &n, type, batch), work);
}

PHANTOM_EXPORT int cufftEstimate2d(int n0, int n1, int type, std::size_t* work) {
  note(Function::cufftEstimate2d);
  const int sizes[] = {n0, n1};
  return estimate(described(2, sizes, type, 1), work);
}

PHANTOM_EXPORT int cufftEstimate3d(int n0, int n1, int n2, int type, std::size_t* work) {
  note(Function::cufftEstimate3d);
  const int sizes[] = {n0, n1, n2};
  return estimate(described(3, sizes, type, 1), work);
}

PHANTOM_EXPORT int cufftEstimateMany(int rank, int* sizes, int* inembed, int istride, int, int* onembed, int ostride,
                                     int, int type, int batch, std::size_t* work) {
  note(Function::cufftEstimateMany);
  return estimate(laid_out(described(rank, sizes, type, batch), inembed, istride, onembed, ostride), work);
}

PHANTOM_EXPORT int cufftGetSize1d(int, int n, int type, int batch, std::size_t* work) {
  note(Function::cufftGetSize1d);
  return estimate(described(1, &n, type, batch), work);
}

PHANTOM_EXPORT int cufftGetSize2d(int, int n0, int n1, int type, std::size_t* work) {
  note(Function::cufftGetSize2d);
  const int sizes[] = {n0, n1};
  return estimate(described(2, sizes, type, 1), work);
}

PHANTOM_EXPORT int cufftGetSize3d(int, int n0, int n1, int n2, int type, std::size_t* work) {
  note(Function::cufftGetSize3d);
  const int sizes[] = {n0, n1, n2};
  return estimate(described(3, sizes, type, 1), work);
}

PHANTOM_EXPORT int cufftGetSizeMany(int, int rank, int* sizes, int* inembed, int istride, int, int* onembed,
                                    int ostride, int, int type, int batch, std::size_t* work) {
  note(Function::cufftGetSizeMany);
  return estimate(laid_out(described(rank, sizes, type, batch), inembed, istride, onembed, ostride), work);
}

PHANTOM_EXPORT int cufftGetSizeMany64(int, int rank, long long* sizes, long long* inembed, long long istride, long long,
                                      long long* onembed, long long ostride, long long, int type, long long batch,
                                      std::size_t* work) {
  note(Function::cufftGetSizeMany64);
  return estimate(laid_out(described(rank, sizes, type, batch), inembed, istride, onembed, ostride), work);
}

PHANTOM_EXPORT int cufftXtGetSizeMany(int, int rank, long long* sizes, long long* inembed, long long istride, long long,
                                      int input, long long* onembed, long long ostride, long long, int output,
                                      long long batch, std::size_t* work, int execution) {
  note(Function::cufftXtGetSizeMany);
  return estimate(
      laid_out(described_by_types(rank, sizes, input, output, batch, execution), inembed, istride, onembed, ostride),
      work);
}

#define PHANTOM_EXECUTES(name)                              \
  PHANTOM_EXPORT int name(int handle, const void*, void*) { \
    note(Function::name);                                   \
    return execute(Function::name, handle);                 \
  }
PHANTOM_EXECUTES(cufftExecC2C)
PHANTOM_EXECUTES(cufftExecR2C)
PHANTOM_EXECUTES(cufftExecC2R)
PHANTOM_EXECUTES(cufftExecZ2Z)
PHANTOM_EXECUTES(cufftExecD2Z)
PHANTOM_EXECUTES(cufftExecZ2D)
PHANTOM_EXECUTES(cufftXtExec)
