// Products of blocks of rows with their experts without a GPU. Compiled by test_experts_products.py.
#include "emulated_hopper.h"
//
#include "../../csrc/experts/products.cuh"

namespace {

template <bool GATED>
void multiply(const experts::Product& p, const CUtensorMap& weights, int blocks) {
  for (int block = 0; block < blocks; ++block)
    emulated::run(1, experts::THREADS, experts::BYTES, [=, &p, &weights] {
      experts::ExpertProducts<GATED> products(p, 0);
      if (threadIdx.x == 0) products.start_barriers();
      __syncthreads();
      if (threadIdx.x >= experts::GROUPS * 128)
        products.fetch(&weights, block, blocks);
      else
        products.multiply();
    });
}

}  // namespace

extern "C" void emulated_multiply_blocks(
    const experts::Product* p, const void* weights, int rows, int gated, int blocks) {
  const CUtensorMap map{static_cast<const __nv_bfloat16*>(weights), rows, p->inputs, experts::HALF};
  gated ? multiply<true>(*p, map, blocks) : multiply<false>(*p, map, blocks);
}
