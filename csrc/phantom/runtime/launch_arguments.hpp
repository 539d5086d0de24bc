// What a kernel was launched with, as far as it says which memory the kernel may write to.
#pragma once

namespace xmem::phantom {

struct Kernel;

// Looks for addresses of watched memory among the arguments of a launch. PyTorch's own kernels are not looked at: its
// dispatcher knows what its operators write to.
//
// `arguments` is what the launch was given: for each parameter the address of its value. Their number and sizes stand
// in the code object of a kernel that was loaded at run time. Of a kernel that a library registered they are not known:
// the code that nvcc makes keeps them on the stack of the function that launches, all of which is looked at; of
// arguments elsewhere nothing is known, and any watched memory may have been written.
void look_at_arguments(const void* handle, void** arguments);

}  // namespace xmem::phantom
