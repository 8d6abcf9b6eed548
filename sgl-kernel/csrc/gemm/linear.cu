// out = x W^T (+ bias), or act(x W_gate^T) * (x W_up^T), for up to a few hundred rows of x, on Hopper's tensor cores.
//
// Such a product is bound by reading W, and from about 200 rows on by multiplying; either way it is best done in one
// wave, each of the multiprocessors with an equal share of W. Rows of x are rows of the tensor core product (64 to a
// warpgroup, GROUPS warpgroups), rows of W its columns: TILE of them, any multiple of 16, so that the shares come out
// even. Where a share would be too few rows, `split` blocks of a cluster multiply a part of the depth each and add
// their sums through each other's shared memory, in a fixed order. With PAIR two blocks of a cluster have half of the
// rows of x each, and each fetches half of the rows of W for both.
//
//   one warp fetches:   W tile ─┐                 ┌─ warpgroup 0: rows 0..63   x TILE ─▶ registers ─▶ out
//                       x tile ─┴▶ ring of stages ┼─ warpgroup 1: rows 64..127 x TILE     (or ─▶ shared memory
//                                                 └─ …                                     ─▶ sum ─▶ out)
//
// The first tiles of W are on their way before the kernel ahead, which may still be writing x, is done.
#include "epilogue.cuh"
#include "hopper.cuh"
#include "wgmma.cuh"

namespace {

constexpr int DEPTH = 64;       // values of a row in one stage: the width of a swizzle
constexpr int GROUP_ROWS = 64;  // of x, to a warpgroup
constexpr int MAX_STAGES = 16;
constexpr int BARRIER_BYTES = 1024;  // keeps the tiles behind them on a 1024-byte boundary

struct Work {
  Target to;
  int tiles;   // along the output
  int depths;  // stages of DEPTH values in a row, the last maybe partial
  int split;
  int x_rows;  // of a stage
  int stages;
};

// Shared memory: barriers, stages of W, stages of x, and room for the rows of x that a warpgroup multiplies though they
// do not exist: a product of garbage is garbage in its own row alone.
struct Ring {
  uint32_t base, w_bytes, x_bytes, stages;
  uint32_t stage = 0, parity = 0;

  __device__ uint32_t full() const { return base + stage * 8; }
  __device__ uint32_t empty() const { return base + (MAX_STAGES + stage) * 8; }
  __device__ uint32_t w() const { return base + BARRIER_BYTES + stage * w_bytes; }
  __device__ uint32_t x() const { return base + BARRIER_BYTES + stages * w_bytes + stage * x_bytes; }
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// What one block of the cluster does.
template <bool PAIR>
struct Share {
  int rank = hopper::cluster_rank();
  int half = PAIR ? rank % 2 : 0;  // of the rows of x
  int part;                        // of the depth
  int first, last;                 // stages of the depth
  int tile, step;                  // the first tile, and from one to the next

  __device__ Share(const Work& work) {
    const int cluster = work.split * (PAIR ? 2 : 1);
    part = PAIR ? rank / 2 : rank;
    first = work.depths * part / work.split;
    last = work.depths * (part + 1) / work.split;
    tile = blockIdx.x / cluster;
    step = gridDim.x / cluster;
  }
};

template <int TILE, int GROUPS, bool PAIR>
struct Fetch {
  static constexpr uint32_t HALF_BYTES = TILE / 2 * hopper::SWIZZLE_BYTES;

  // Both halves of a W tile; of a pair of blocks each fetches one for both.
  static __device__ __forceinline__ void weights(
      const CUtensorMap& map, const Work& work, const Share<PAIR>& share, const Ring& ring, int tile, int depth,
      uint64_t policy) {
    hopper::barrier_expect(ring.full(), ring.w_bytes + ring.x_bytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = work.to.gated ? half * work.to.width + tile * (TILE / 2) : tile * TILE + half * (TILE / 2);
      const uint32_t target = ring.w() + half * HALF_BYTES;
      if (!PAIR) {
        hopper::copy_box(target, &map, depth * DEPTH, row, ring.full(), policy);
      } else if (half == share.half) {
        const uint16_t both = 3 << (share.rank & ~1);
        hopper::copy_box_to(target, &map, depth * DEPTH, row, ring.full(), both, policy);
      }
    }
  }

  static __device__ __forceinline__ void rows(
      const CUtensorMap& map, const Share<PAIR>& share, const Ring& ring, int depth, uint64_t policy) {
    hopper::copy_box(ring.x(), &map, depth * DEPTH, share.half * GROUPS * GROUP_ROWS, ring.full(), policy);
  }

  static __device__ void run(
      const CUtensorMap& w_map, const CUtensorMap& x_map, const Work& work, const Share<PAIR>& share, Ring ring) {
    const uint64_t once = hopper::evict_first(), often = hopper::evict_last();
    const int ahead = share.tile < work.tiles ? min(work.stages, share.last - share.first) : 0;
    Ring later = ring;
    for (int i = 0; i < ahead; ++i, ring.advance()) {
      weights(w_map, work, share, ring, share.tile, share.first + i, once);
    }
    hopper::wait_for_kernels_ahead();
    for (int i = 0; i < ahead; ++i, later.advance()) rows(x_map, share, later, share.first + i, often);
    int depth = share.first + ahead;
    for (int tile = share.tile; tile < work.tiles; tile += share.step, depth = share.first) {
      for (; depth < share.last; ++depth, ring.advance()) {
        hopper::barrier_wait(ring.empty(), ring.parity ^ 1);
        weights(w_map, work, share, ring, tile, depth, once);
        rows(x_map, share, ring, depth, often);
      }
    }
  }
};

template <int TILE, int GROUPS, bool PAIR>
struct Multiply {
  static constexpr int THREADS = GROUPS * 128;

  // One lane of each warp, when its warp's reads are done.
  static __device__ __forceinline__ void release(const Share<PAIR>& share, uint32_t barrier) {
    if (threadIdx.x % 32 == 0) {
      hopper::barrier_arrive(barrier);
      if (PAIR) hopper::barrier_arrive_at(barrier, share.rank ^ 1);
    }
  }

  static __device__ __forceinline__ void tile(float (&d)[TILE / 2], const Share<PAIR>& share, Ring& ring) {
    const int group = threadIdx.x / 128;
    uint32_t before = 0;
#pragma unroll 1
    for (int depth = share.first; depth < share.last; ++depth, ring.advance()) {
      hopper::barrier_wait(ring.full(), ring.parity);
      const uint64_t a = hopper::operand(ring.x() + group * GROUP_ROWS * hopper::SWIZZLE_BYTES);
      const uint64_t b = hopper::operand(ring.w());
      hopper::wgmma_fence();
#pragma unroll
      for (int i = 0; i < DEPTH / 16; ++i) {
        const bool more = depth > share.first || i > 0;
        hopper::Wgmma<TILE>::multiply(d, a + i * hopper::ADVANCE, b + i * hopper::ADVANCE, more);
      }
      hopper::wgmma_commit();
      hopper::wgmma_wait<1>();
      if (before) release(share, before);
      before = ring.empty();
    }
    hopper::wgmma_wait<0>();
    if (before) release(share, before);
  }

  static __device__ void run(const Work& work, const Share<PAIR>& share, Ring ring) {
    const int group = threadIdx.x / 128, first_row = share.half * GROUPS * GROUP_ROWS;
    float d[TILE / 2];
    if (work.split == 1) {
      bool waited = false;
      for (int at = share.tile; at < work.tiles; at += share.step) {
        tile(d, share, ring);
        if (!waited) hopper::wait_for_kernels_ahead(), waited = true;
        store_sums<TILE>(work.to, d, at, first_row + group * GROUP_ROWS);
      }
      return;
    }
    tile(d, share, ring);
    hopper::wait_for_kernels_ahead();
    hopper::named_barrier(1, THREADS);  // nobody multiplies any more: the ring is free
    const int rows = min(work.to.rows - first_row, GROUPS * GROUP_ROWS);
    const uint32_t memory = ring.base + BARRIER_BYTES;
    extern __shared__ char shared[];
    Partials<TILE>::keep(reinterpret_cast<float*>(shared + (memory - hopper::shared_address(shared))), d,
                         group * GROUP_ROWS, rows);
    hopper::cluster_sync();
    Partials<TILE>::reduce(work.to, memory, share.tile, first_row, rows, work.split, share.part, share.half,
                           PAIR ? 2 : 1, THREADS);
  }
};

// One warp fetches; where there are several warpgroups that multiply, it has one of its own, to give registers away.
constexpr int threads(int groups) { return groups * 128 + (groups > 1 ? 128 : 32); }

// Registers of a thread that multiplies and of one that fetches; together no more than a multiprocessor has.
template <int GROUPS>
constexpr int MULTIPLY_REGISTERS = GROUPS == 3 ? 160 : 232;
template <int GROUPS>
constexpr int FETCH_REGISTERS = GROUPS == 3 ? 32 : 40;

template <int TILE, int GROUPS, bool PAIR>
__global__ void __launch_bounds__(threads(GROUPS), 1) linear_kernel(
    const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, const Work work) {
  extern __shared__ char shared[];
  const uint32_t base = (hopper::shared_address(shared) + 1023) & ~1023u;
  Ring ring{base, TILE * hopper::SWIZZLE_BYTES, uint32_t(work.x_rows) * hopper::SWIZZLE_BYTES, uint32_t(work.stages)};
  const Share<PAIR> share(work);
  hopper::launch_dependents();
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&w_map);
    hopper::prefetch_map(&x_map);
    for (Ring each = ring; each.parity == 0; each.advance()) {
      hopper::barrier_init(each.full(), 1);
      hopper::barrier_init(each.empty(), GROUPS * 4 * (PAIR ? 2 : 1));
    }
    hopper::barrier_init_fence();
  }
  // Of a pair each writes into the other's memory: its barriers must be there.
  if (PAIR) {
    hopper::cluster_meet();
  } else {
    __syncthreads();
  }
  if (threadIdx.x >= GROUPS * 128) {
    if (GROUPS > 1) hopper::give_registers<FETCH_REGISTERS<GROUPS>>();
    if (threadIdx.x == GROUPS * 128) Fetch<TILE, GROUPS, PAIR>::run(w_map, x_map, work, share, ring);
    __syncwarp();
    if (work.split > 1) hopper::cluster_sync();
    if (PAIR || work.split > 1) hopper::cluster_meet();
  } else {
    if (GROUPS > 1) hopper::take_registers<MULTIPLY_REGISTERS<GROUPS>>();
    Multiply<TILE, GROUPS, PAIR>::run(work, share, ring);
    // Nobody leaves while others read its memory or arrive at its barriers.
    if (PAIR || work.split > 1) hopper::cluster_meet();
  }
}

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
}

// Boxes of box_rows rows, DEPTH values each, of a matrix; what lies outside it reads as zero.
cudaError_t map_matrix(CUtensorMap& map, const void* matrix, int rows, int columns, int64_t stride, int box_rows) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)};
  const cuuint64_t strides[] = {cuuint64_t(stride) * sizeof(__nv_bfloat16)};
  const cuuint32_t box[] = {DEPTH, cuuint32_t(box_rows)}, steps[] = {1, 1};
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

struct Arguments {
  Target to;
  const void* x;
  const void* weight;
  int outputs, inputs;
  int64_t x_stride;
  int split, clusters, shared_bytes;
  cudaStream_t stream;
};

template <int TILE, int GROUPS, bool PAIR>
cudaError_t launch(const Arguments& a) {
  constexpr int block_rows = GROUPS * GROUP_ROWS, pair = PAIR ? 2 : 1;
  const int x_rows = a.to.rows >= block_rows ? block_rows : (a.to.rows + 7) / 8 * 8;
  const int stage_bytes = (TILE + x_rows) * hopper::SWIZZLE_BYTES;
  const int slack = 1024 + BARRIER_BYTES + (block_rows - x_rows) * hopper::SWIZZLE_BYTES;
  const int stages = min(MAX_STAGES, (a.shared_bytes - slack) / stage_bytes);
  const int partial_bytes = a.split > 1 ? min(a.to.rows, block_rows) * Partials<TILE>::ROW * int(sizeof(float)) : 0;
  const int bytes = slack + max(stages * stage_bytes, partial_bytes);
  const int tile_columns = a.to.gated ? TILE / 2 : TILE;
  const int tiles = (a.to.width + tile_columns - 1) / tile_columns, depths = (a.inputs + DEPTH - 1) / DEPTH;
  const Work work{a.to, tiles, depths, a.split, x_rows, stages};

  CUtensorMap w_map, x_map;
  cudaError_t error = map_matrix(w_map, a.weight, a.outputs, a.inputs, a.inputs, TILE / 2);
  if (error == cudaSuccess) error = map_matrix(x_map, a.x, a.to.rows, a.inputs, a.x_stride, x_rows);
  if (error != cudaSuccess) return error;

  const auto kernel = linear_kernel<TILE, GROUPS, PAIR>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  // Partial sums stay in the ring, so a block that has some multiplies one tile only.
  const int clusters = a.split > 1 ? work.tiles : min(work.tiles, a.clusters);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = a.split * pair;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(clusters * a.split * pair);
  config.blockDim = dim3(threads(GROUPS));
  config.dynamicSmemBytes = bytes;
  config.stream = a.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, w_map, x_map, work);
}

#ifndef GROUPS_OF_LIBRARY
#define GROUPS_OF_LIBRARY 1
#endif
#ifndef PAIRS_OF_LIBRARY
#define PAIRS_OF_LIBRARY false
#endif

template <int TILE>
cudaError_t launch_tile(const Arguments& a) {
  return launch<TILE, GROUPS_OF_LIBRARY, PAIRS_OF_LIBRARY>(a);
}

}  // namespace

// x: [rows, inputs] with x_stride values from row to row; weight: [outputs, inputs] dense; out: [rows, width] dense,
// width = outputs, or outputs / 2 if gated; a multiple of 8. All addresses, and x_stride and inputs in bytes, are
// multiples of 16. split: blocks that share the depth; with pairs no more than 4, else 8, and not more than there are
// runs of 64 inputs. clusters: how many there are at most, if split is 1. shared_bytes: of a block, about.
// cudaErrorInvalidValue for a tile that is not built.
extern "C" cudaError_t mysgl_linear(
    void* out, const void* x, const void* weight, const void* bias, int rows, int outputs, int inputs, int64_t x_stride,
    int gated, float gate_a, float gate_b, int tile, int split, int clusters, int shared_bytes, cudaStream_t stream) {
  const Target to{static_cast<__nv_bfloat16*>(out), static_cast<const __nv_bfloat16*>(bias), rows,
                  gated ? outputs / 2 : outputs, gated != 0, {gate_a, gate_b}};
  const Arguments arguments{to, x, weight, outputs, inputs, x_stride, split, clusters, shared_bytes, stream};
  switch (tile) {
    case 32: return launch_tile<32>(arguments);
    case 48: return launch_tile<48>(arguments);
    case 64: return launch_tile<64>(arguments);
    case 80: return launch_tile<80>(arguments);
    case 96: return launch_tile<96>(arguments);
    case 112: return launch_tile<112>(arguments);
    case 128: return launch_tile<128>(arguments);
    case 144: return launch_tile<144>(arguments);
    case 160: return launch_tile<160>(arguments);
    case 176: return launch_tile<176>(arguments);
    case 192: return launch_tile<192>(arguments);
#if GROUPS_OF_LIBRARY < 3
    case 208: return launch_tile<208>(arguments);
    case 224: return launch_tile<224>(arguments);
    case 240: return launch_tile<240>(arguments);
    case 256: return launch_tile<256>(arguments);
#endif
    default: return cudaErrorInvalidValue;
  }
}

// counts[i]: how many clusters of i + 1 blocks the device has room for at once, if a multiprocessor holds one block.
extern "C" cudaError_t mysgl_linear_clusters(int* counts) {
  const auto kernel = linear_kernel<64, GROUPS_OF_LIBRARY, PAIRS_OF_LIBRARY>;
  constexpr int bytes = 227 * 1024;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  for (int i = 0; i < MAX_SPLIT && error == cudaSuccess; ++i) {
    cudaLaunchAttribute size;
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = i + 1;
    size.val.clusterDim.y = size.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1024 * (i + 1));
    config.blockDim = dim3(threads(GROUPS_OF_LIBRARY));
    config.dynamicSmemBytes = bytes;
    config.attrs = &size;
    config.numAttrs = 1;
    error = cudaOccupancyMaxActiveClusters(&counts[i], kernel, &config);
  }
  return error;
}
