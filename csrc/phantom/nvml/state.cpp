// What sensors say. Nothing computes, so a card is idle: no utilization, room temperature, idle power; clocks are the
// described ones. Approximate, and of no influence on memory.
#include <cstdint>

#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "nvml/cards.hpp"

using namespace xmem::phantom;        // NOLINT: what follows is C
using namespace xmem::phantom::nvml;  // NOLINT

namespace {

constexpr int kIdleCelsius = 30;
constexpr int kIdleMilliwatts = 20000;
constexpr int kLimitMilliwatts = 300000;  // no description names a card's power limit
constexpr int kShutdownCelsius = 95;

struct Utilization {  // nvmlUtilization_t
  unsigned gpu, memory;
};

struct TemperatureReading {  // nvmlTemperature_v1_t
  unsigned version;
  int sensor;
  int celsius;
};

enum Clock : int { kGraphicsClock = 0, kSmClock = 1, kMemoryClock = 2, kVideoClock = 3 };  // nvmlClockType_t

int clock_mhz(const void* handle, int clock, unsigned* mhz) {
  if (clock < kGraphicsClock || clock > kVideoClock) return kInvalidArgument;
  return answer(handle, mhz, [clock](const Device& card) {
    return card.attribute(clock == kMemoryClock ? kMemoryClockRate : kClockRate) / 1000;
  });
}

// For functions that say 0 when nothing happens.
int nothing(const void* handle, unsigned* value) {
  return answer(handle, value, [](const Device&) { return 0; });
}

int encoder(const void* handle, unsigned* utilization, unsigned* sampling_us) {
  const int error = nothing(handle, utilization);
  if (error == kSuccess && sampling_us != nullptr) *sampling_us = 0;
  return error;
}

}  // namespace

PHANTOM_EXPORT int nvmlDeviceGetUtilizationRates(const void* handle, Utilization* utilization) {
  note(Function::nvmlDeviceGetUtilizationRates);
  if (utilization == nullptr) return kInvalidArgument;
  const int error = nothing(handle, &utilization->gpu);
  if (error == kSuccess) utilization->memory = 0;
  return error;
}

PHANTOM_EXPORT int nvmlDeviceGetEncoderUtilization(const void* handle, unsigned* utilization, unsigned* sampling_us) {
  note(Function::nvmlDeviceGetEncoderUtilization);
  return encoder(handle, utilization, sampling_us);
}

PHANTOM_EXPORT int nvmlDeviceGetDecoderUtilization(const void* handle, unsigned* utilization, unsigned* sampling_us) {
  note(Function::nvmlDeviceGetDecoderUtilization);
  return encoder(handle, utilization, sampling_us);
}

PHANTOM_EXPORT int nvmlDeviceGetTemperature(const void* handle, int, unsigned* celsius) {
  note(Function::nvmlDeviceGetTemperature);
  return answer(handle, celsius, [](const Device&) { return kIdleCelsius; });
}

PHANTOM_EXPORT int nvmlDeviceGetTemperatureV(const void* handle, TemperatureReading* reading) {
  note(Function::nvmlDeviceGetTemperatureV);
  if (reading == nullptr) return kInvalidArgument;
  return answer(handle, &reading->celsius, [](const Device&) { return kIdleCelsius; });
}

PHANTOM_EXPORT int nvmlDeviceGetTemperatureThreshold(const void* handle, int, unsigned* celsius) {
  note(Function::nvmlDeviceGetTemperatureThreshold);
  return answer(handle, celsius, [](const Device&) { return kShutdownCelsius; });
}

PHANTOM_EXPORT int nvmlDeviceGetFanSpeed(const void* handle, unsigned* percent) {
  note(Function::nvmlDeviceGetFanSpeed);
  return nothing(handle, percent);
}

PHANTOM_EXPORT int nvmlDeviceGetPowerUsage(const void* handle, unsigned* milliwatts) {
  note(Function::nvmlDeviceGetPowerUsage);
  return answer(handle, milliwatts, [](const Device&) { return kIdleMilliwatts; });
}

PHANTOM_EXPORT int nvmlDeviceGetPowerManagementLimit(const void* handle, unsigned* milliwatts) {
  note(Function::nvmlDeviceGetPowerManagementLimit);
  return answer(handle, milliwatts, [](const Device&) { return kLimitMilliwatts; });
}

PHANTOM_EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(const void* handle, unsigned* least, unsigned* most) {
  note(Function::nvmlDeviceGetPowerManagementLimitConstraints);
  const int error = answer(handle, least, [](const Device&) { return kLimitMilliwatts / 3; });
  return error != kSuccess ? error : answer(handle, most, [](const Device&) { return kLimitMilliwatts; });
}

PHANTOM_EXPORT int nvmlDeviceGetTotalEnergyConsumption(const void* handle, std::uint64_t* millijoules) {
  note(Function::nvmlDeviceGetTotalEnergyConsumption);
  return answer(handle, millijoules, [](const Device&) { return 0; });
}

PHANTOM_EXPORT int nvmlDeviceGetClockInfo(const void* handle, int clock, unsigned* mhz) {
  note(Function::nvmlDeviceGetClockInfo);
  return clock_mhz(handle, clock, mhz);
}

PHANTOM_EXPORT int nvmlDeviceGetMaxClockInfo(const void* handle, int clock, unsigned* mhz) {
  note(Function::nvmlDeviceGetMaxClockInfo);
  return clock_mhz(handle, clock, mhz);
}

PHANTOM_EXPORT int nvmlDeviceGetApplicationsClock(const void* handle, int clock, unsigned* mhz) {
  note(Function::nvmlDeviceGetApplicationsClock);
  return clock_mhz(handle, clock, mhz);
}

PHANTOM_EXPORT int nvmlDeviceGetClock(const void* handle, int clock, int, unsigned* mhz) {
  note(Function::nvmlDeviceGetClock);
  return clock_mhz(handle, clock, mhz);
}

PHANTOM_EXPORT int nvmlDeviceGetCurrentClocksEventReasons(const void* handle, std::uint64_t* reasons) {
  note(Function::nvmlDeviceGetCurrentClocksEventReasons);
  return answer(handle, reasons, [](const Device&) { return 0; });
}

PHANTOM_EXPORT int nvmlDeviceGetPerformanceState(const void* handle, unsigned* state) {
  note(Function::nvmlDeviceGetPerformanceState);
  return nothing(handle, state);  // P0
}

PHANTOM_EXPORT int nvmlDeviceGetPersistenceMode(const void* handle, unsigned* mode) {
  note(Function::nvmlDeviceGetPersistenceMode);
  return answer(handle, mode, [](const Device&) { return 1; });
}

PHANTOM_EXPORT int nvmlDeviceGetDisplayMode(const void* handle, unsigned* mode) {
  note(Function::nvmlDeviceGetDisplayMode);
  return nothing(handle, mode);
}

PHANTOM_EXPORT int nvmlDeviceGetDisplayActive(const void* handle, unsigned* active) {
  note(Function::nvmlDeviceGetDisplayActive);
  return nothing(handle, active);
}

PHANTOM_EXPORT int nvmlDeviceGetComputeMode(const void* handle, unsigned* mode) {
  note(Function::nvmlDeviceGetComputeMode);
  return nothing(handle, mode);  // shared by all processes
}
