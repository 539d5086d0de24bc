// NVML's devices: all cards of the machine, whatever CUDA_VISIBLE_DEVICES says.
#pragma once

#include "machine/machine.hpp"

namespace xmem::phantom::nvml {

// nvmlReturn_t
enum Return : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kVersionMismatch = 25,
};

// Between nvmlInit and nvmlShutdown.
bool initialized();

void* handle_of(int card);

// The number of the card that a handle stands for, and its description; an error for what is no handle, or before
// nvmlInit.
int card_of(const void* handle, int* number, const Device** card);

// The same for functions that answer one number about a card.
template <typename Number, typename Answer>
int answer(const void* handle, Number* value, Answer compute) {
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  if (value == nullptr) return kInvalidArgument;
  *value = static_cast<Number>(compute(*card));
  return kSuccess;
}

// Copies a text into a caller's buffer.
int give_text(const char* text, char* buffer, unsigned length);

}  // namespace xmem::phantom::nvml
