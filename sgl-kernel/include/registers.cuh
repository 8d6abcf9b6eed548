// Registers that warps move between them and the multiprocessor's pool (sm_90a).

#pragma once

namespace {

// By all warps of a group of four, all of one kind: they have so many registers each from here on, fewer than before.
template <int COUNT>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// The same, more than before.
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

}  // namespace
