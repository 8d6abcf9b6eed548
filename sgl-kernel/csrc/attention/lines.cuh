// Memory as lines that the copy engine brings: tensor maps, where a chunk of a line lies in shared memory, and the
// turns of a ring of stages there.

#pragma once

#include "encode.cuh"
#include "instructions.cuh"

namespace {

constexpr int LINE_BYTES = 128;  // of all banks of shared memory, and what the copy engine swizzles

// Describes lines for copies of so many of them at once.
cudaError_t describe_lines(CUtensorMap& map, const void* memory, long lines, int copied) {
    static const Encode encode = find_encode();
    if (encode == nullptr) return cudaErrorNotSupported;
    const cuuint64_t sizes[] = {LINE_BYTES / sizeof(Value), cuuint64_t(lines)}, strides[] = {LINE_BYTES};
    const cuuint32_t box[] = {LINE_BYTES / sizeof(Value), cuuint32_t(copied)}, steps[] = {1, 1};
    const CUresult done = encode(
        &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(memory), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return done == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// A chunk of 16 bytes where the copy engine puts it: within its line at chunk ^ (the line's number % 8). So a chunk
// that lies an even number further in the same line is found by one more ^.
__device__ __forceinline__ uint32_t chunk_of(uint32_t row, int chunk) {
    uint32_t line = row + chunk / 8 * LINE_BYTES;
    return line + ((chunk % 8 * 16) ^ (line >> 3 & 0x70));
}

// A place in a ring of stages, and how often the ring was gone round, modulo two.
template <int STAGES>
struct TurnOf {
    int slot = 0, parity = 0;

    __device__ __forceinline__ void step() {
        if (++slot < STAGES) return;
        slot = 0;
        parity ^= 1;
    }
};

}  // namespace
