// The pools of keys and values as the copy engine is told of them: tensor maps.

#pragma once

#include "lines.cuh"
#include "teams.cuh"

namespace {

constexpr int LINES = ROW_BYTES / LINE_BYTES;  // of one head

// For 1, 2, 4 and 8 heads of a token in one copy.
struct Maps {
    CUtensorMap keys[4], values[4];
};

// Of a pool with so many slots.
cudaError_t describe(Maps& maps, const void* keys, const void* values, long slots, int kv_heads) {
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 4 && kv_heads % (1 << i) == 0; ++i) {
        const long lines = slots * kv_heads * LINES;
        const int copied = LINES << i;
        if (error == cudaSuccess) error = describe_lines(maps.keys[i], keys, lines, copied);
        if (error == cudaSuccess) error = describe_lines(maps.values[i], values, lines, copied);
    }
    return error;
}

}  // namespace
