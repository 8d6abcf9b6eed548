// The pools of keys and values as the copy engine is told of them: tensor maps.

#pragma once

#include <cuda.h>

#include "teams.cuh"

namespace {

constexpr int LINES = ROW_BYTES / LINE_BYTES;  // of one head

// For 1, 2, 4 and 8 heads of a token in one copy.
struct Maps {
    CUtensorMap keys[4], values[4];
};

// A pool of so many slots as lines, for copies of so many heads.
cudaError_t describe(CUtensorMap& map, const void* pool, long slots, int kv_heads, int heads) {
    static const auto encode = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
    }();
    if (encode == nullptr) return cudaErrorNotSupported;
    const cuuint64_t sizes[] = {LINE_BYTES / sizeof(Value), cuuint64_t(slots) * kv_heads * LINES};
    const cuuint64_t strides[] = {LINE_BYTES};
    const cuuint32_t box[] = {LINE_BYTES / sizeof(Value), cuuint32_t(heads * LINES)}, steps[] = {1, 1};
    const CUresult done = encode(
        &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(pool), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return done == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t describe(Maps& maps, const void* keys, const void* values, long slots, int kv_heads) {
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 4 && kv_heads % (1 << i) == 0; ++i) {
        if (error == cudaSuccess) error = describe(maps.keys[i], keys, slots, kv_heads, 1 << i);
        if (error == cudaSuccess) error = describe(maps.values[i], values, slots, kv_heads, 1 << i);
    }
    return error;
}

}  // namespace
