// The driver's function that describes memory to the copy engine.

#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
}

}  // namespace
