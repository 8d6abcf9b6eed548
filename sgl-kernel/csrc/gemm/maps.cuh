// Maps by which the copy engine reads a matrix.
#pragma once

#include "encode.cuh"
#include "hopper.cuh"
#include "swizzle.cuh"

namespace {

// Boxes of box_rows rows, as wide as the swizzle, of a matrix in bfloat16; what lies outside it reads as zero. promotion:
// how much of a row the second-level cache fetches with it.
cudaError_t map_matrix(
    CUtensorMap& map, const void* matrix, int rows, int columns, int64_t stride, int box_rows,
    CUtensorMapL2promotion promotion) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)};
  const cuuint64_t strides[] = {cuuint64_t(stride) * sizeof(__nv_bfloat16)};
  const cuuint32_t box[] = {hopper::SWIZZLE_BYTES / sizeof(__nv_bfloat16), cuuint32_t(box_rows)}, steps[] = {1, 1};
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace
