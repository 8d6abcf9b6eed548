// Launches, with programmatic dependent launch where the device knows it.

#pragma once

#include <cuda_runtime.h>

namespace {

template <class Kernel, class... Arguments>
cudaError_t launch(
    Kernel kernel, int blocks, int threads, size_t shared, cudaStream_t stream, bool overlap,
    const Arguments&... arguments) {
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace
