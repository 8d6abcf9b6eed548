// Launches of the product in linear.cuh, of the forms and tiles that one library is built for.
#include "linear.cuh"
#include "maps.cuh"

namespace {

struct Arguments {
  Target to;
  const void* x;
  const void* weight;
  int outputs, inputs;
  int64_t x_stride;
  int split, clusters, shared_bytes, row_group;
  cudaStream_t stream;
};

template <int TILE, int GROUPS, bool PAIR, bool LATE>
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
  const int row_blocks = (a.to.rows + pair * block_rows - 1) / (pair * block_rows);
  const Work work{a.to, tiles, depths, a.split, x_rows, stages, row_blocks, a.row_group};
  const int items = Item<LATE>::count(work);

  CUtensorMap w_map, x_map;
  constexpr auto ahead = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  cudaError_t error = map_matrix(w_map, a.weight, a.outputs, a.inputs, a.inputs, TILE / 2, ahead);
  if (error == cudaSuccess) error = map_matrix(x_map, a.x, a.to.rows, a.inputs, a.x_stride, x_rows, ahead);
  if (error != cudaSuccess) return error;

  const auto kernel = linear_kernel<TILE, GROUPS, PAIR, LATE>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  // Partial sums stay in the ring, so a block that has some multiplies one tile only.
  const int clusters = a.split > 1 ? work.tiles : min(items, a.clusters);
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

// What one library is built for.
#ifndef GROUPS_OF_LIBRARY
#define GROUPS_OF_LIBRARY 1
#endif
#ifndef PAIRS_OF_LIBRARY
#define PAIRS_OF_LIBRARY false
#endif
#ifndef WIDE_OF_LIBRARY
#define WIDE_OF_LIBRARY true
#endif
#ifndef LATE_OF_LIBRARY
#define LATE_OF_LIBRARY false
#endif

template <int TILE>
constexpr bool HAS_LATE_GATES = TILE == 176 || TILE == 192 || TILE == 224 || TILE == 256;

template <int TILE>
cudaError_t launch_tile(const Arguments& a) {
  constexpr int groups = GROUPS_OF_LIBRARY;
  constexpr bool pair = PAIRS_OF_LIBRARY;
  if constexpr (!LATE_OF_LIBRARY) {
    if (a.to.rows <= groups * GROUP_ROWS * (pair ? 2 : 1)) return launch<TILE, groups, pair, false>(a);
  } else if constexpr (HAS_LATE_GATES<TILE>) {
    const bool long_enough = a.inputs > (Finished<TILE>::PIECES - 1) * DEPTH;
    if (a.to.gated && a.split == 1 && long_enough) return launch<TILE, groups, pair, true>(a);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

// x: [rows, inputs] with x_stride values from row to row; weight: [outputs, inputs] dense; out: [rows, width] dense,
// width = outputs, or outputs / 2 if gated; a multiple of 8. All addresses, and x_stride and inputs in bytes, are
// multiples of 16. split: blocks that share the depth; with pairs no more than 4, else 8, and not more than there are
// runs of 64 inputs. clusters: how many there are at most, if split is 1. shared_bytes: of a block, about.
// A library with late gates takes gated products only, which are not split, of at least 512 inputs. It alone takes more
// rows than a block or pair does; row_group blocks of these share a tile of W at about the same time.
// cudaErrorInvalidValue for what is not built.
extern "C" cudaError_t mysgl_linear(
    void* out, const void* x, const void* weight, const void* bias, int rows, int outputs, int inputs, int64_t x_stride,
    int gated, float gate_a, float gate_b, int tile, int split, int clusters, int shared_bytes, int row_group,
    cudaStream_t stream) {
  const Target to{static_cast<__nv_bfloat16*>(out), static_cast<const __nv_bfloat16*>(bias), rows,
                  gated ? outputs / 2 : outputs, gated != 0, {gate_a, gate_b}};
  const Arguments arguments{to, x, weight, outputs, inputs, x_stride, split, clusters, shared_bytes, row_group, stream};
  switch (tile) {
#if !WIDE_OF_LIBRARY
    case 32: return launch_tile<32>(arguments);
    case 48: return launch_tile<48>(arguments);
    case 64: return launch_tile<64>(arguments);
    case 80: return launch_tile<80>(arguments);
    case 96: return launch_tile<96>(arguments);
    case 112: return launch_tile<112>(arguments);
    case 128: return launch_tile<128>(arguments);
#else
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
#endif
    default: return cudaErrorInvalidValue;
  }
}

#if !WIDE_OF_LIBRARY
// counts[i]: how many clusters of i + 1 blocks the device has room for at once, if a multiprocessor holds one block.
extern "C" cudaError_t mysgl_linear_clusters(int* counts) {
  const auto kernel = linear_kernel<64, GROUPS_OF_LIBRARY, PAIRS_OF_LIBRARY, false>;
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
#endif
