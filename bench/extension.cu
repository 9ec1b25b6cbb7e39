// What extensions of PyTorch do that no operator of its own does: kernels that reach tensors through tables in memory of
// others, through globals and constants of a module, through textures and tensor maps, and graphs that copy such tables.
// For extension_checks.py. All functions return a cudaError_t, or -1 for what is not there; streams are PyTorch's.
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define TRY(call)                              \
    do {                                       \
        cudaError_t e_ = (call);               \
        if (e_ != cudaSuccess) return (int)e_; \
    } while (0)

typedef unsigned long long u64;
enum { BLOCKS = 264, THREADS = 256 };

static __device__ void add(float *p, size_t n, float inc) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x) p[i] += inc;
}

// ---- tables ----

static __global__ void table_add(float *const *table, int count, size_t n, float inc) {
    for (int i = 0; i < count; i++) add(table[i], n, inc);
}

static __global__ void make_table(float **table, float *first, size_t stride, int count) {
    for (int i = 0; i < count; i++) table[i] = first + i * stride;
}

// Adds to n floats at each of the addresses in a table, wherever that is.
EXPORT int add_by_table(cudaStream_t s, float *const *table, int count, size_t n, float inc) {
    table_add<<<BLOCKS, THREADS, 0, s>>>(table, count, n, inc);
    return cudaGetLastError();
}

// The same by a table that a kernel computes, in memory that is allocated here.
EXPORT int add_by_own_table(cudaStream_t s, float *first, size_t stride, int count, size_t n, float inc) {
    static float **table;
    if (!table) TRY(cudaMalloc(&table, 4096));
    make_table<<<1, 1, 0, s>>>(table, first, stride, count);
    return add_by_table(s, table, count, n, inc);
}

// The same by a table in pinned memory of the host.
EXPORT int add_by_pinned_table(cudaStream_t s, float *const *addresses, int count, size_t n, float inc) {
    static float **table;
    if (!table) TRY(cudaHostAlloc(&table, 4096, cudaHostAllocMapped));
    TRY(cudaStreamSynchronize(s));
    for (int i = 0; i < count; i++) table[i] = addresses[i];
    return add_by_table(s, table, count, n, inc);
}

// ---- globals and constants ----

static __device__ float *in_global[2];
static __constant__ float *in_constant[2];

static __global__ void globals_add(int count, size_t n, float inc) {
    for (int i = 0; i < count; i++) add(in_global[i], n, inc), add(in_constant[i], n, inc);
}

EXPORT int set_globals(float *const *addresses) {
    TRY(cudaMemcpyToSymbol(in_global, addresses, sizeof in_global));
    return cudaMemcpyToSymbol(in_constant, addresses + 2, sizeof in_constant);
}

EXPORT int add_by_globals(cudaStream_t s, size_t n, float inc) {
    globals_add<<<BLOCKS, THREADS, 0, s>>>(2, n, inc);
    return cudaGetLastError();
}

// ---- a graph that copies a table from the host ----

static cudaGraphExec_t graph;

EXPORT int make_graph(float *const *addresses, int count, size_t n, float inc) {
    static float **table;
    static const float *from[64];
    if (count > 64) return -1;
    if (!table) TRY(cudaMalloc(&table, 4096));
    for (int i = 0; i < count; i++) from[i] = addresses[i];
    cudaGraph_t g;
    cudaGraphNode_t copy, kernel;
    TRY(cudaGraphCreate(&g, 0));
    TRY(cudaGraphAddMemcpyNode1D(&copy, g, nullptr, 0, table, from, count * sizeof *from, cudaMemcpyHostToDevice));
    void *params[] = {&table, &count, &n, &inc};
    cudaKernelNodeParams k = {};
    k.func = (void *)table_add, k.gridDim = dim3(BLOCKS), k.blockDim = dim3(THREADS), k.kernelParams = params;
    TRY(cudaGraphAddKernelNode(&kernel, g, &copy, 1, &k));
    TRY(cudaGraphInstantiate(&graph, g, 0));
    return cudaGraphDestroy(g);
}

EXPORT int launch_graph(cudaStream_t s) { return cudaGraphLaunch(graph, s); }

// ---- textures over linear memory ----

static __global__ void texture_add(cudaTextureObject_t t, float *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] += tex1Dfetch<float>(t, i);
}

EXPORT int make_texture(const float *p, int n, u64 *object) {
    cudaResourceDesc r = {};
    r.resType = cudaResourceTypeLinear;
    r.res.linear.devPtr = (void *)p, r.res.linear.desc = cudaCreateChannelDesc<float>(), r.res.linear.sizeInBytes = n * sizeof *p;
    cudaTextureDesc d = {};
    d.readMode = cudaReadModeElementType;
    return cudaCreateTextureObject((cudaTextureObject_t *)object, &r, &d, nullptr);
}

EXPORT int add_texture(cudaStream_t s, u64 object, float *out, int n) {
    texture_add<<<BLOCKS, THREADS, 0, s>>>(object, out, n);
    return cudaGetLastError();
}

EXPORT int drop_texture(u64 object) { return cudaDestroyTextureObject(object); }

// ---- tensor maps: what the copy units of an H100 and later are given ----

enum { TILE = 32, TILE_BYTES = TILE * TILE * 4 };

// Sums a matrix of rows x columns floats tile by tile; each block has a row of tiles.
static __global__ void sum_tiles(const __grid_constant__ CUtensorMap map, float *sums, int columns) {
#if __CUDA_ARCH__ >= 900
    __shared__ alignas(128) float tile[TILE * TILE];
    __shared__ alignas(8) u64 barrier;
    uint32_t to = (uint32_t)__cvta_generic_to_shared(tile), bar = (uint32_t)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    float sum = 0;
    for (int x = 0, phase = 0; x < columns; x += TILE, phase ^= 1) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"((int)TILE_BYTES));
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                         "l"(&map), "r"(bar), "r"(x), "r"((int)blockIdx.x * TILE)
                         : "memory");
        }
        for (int done = 0; !done;)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(phase) : "memory");
        for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) sum += tile[i];
        __syncthreads();
    }
    atomicAdd(&sums[blockIdx.x], sum);
#endif
}

static int encode(CUtensorMap *map, const float *p, int rows, int columns) {
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                  CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static encode_fn fn;
    if (!fn) {
        cudaDriverEntryPointQueryResult found;
        TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&fn, 12000, cudaEnableDefault, &found));
        if (found != cudaDriverEntryPointSuccess) return -1;
    }
    cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)columns * 4};
    cuuint32_t box[2] = {TILE, TILE}, step[2] = {1, 1};
    return fn(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)p, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
              CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// A map is made once and used for as long as the matrix lives.
EXPORT int make_map(const float *p, int rows, int columns, CUtensorMap *map) { return encode(map, p, rows, columns); }

EXPORT int sum_by_map(cudaStream_t s, const CUtensorMap *map, float *sums, int rows, int columns) {
    sum_tiles<<<rows / TILE, 128, 0, s>>>(*map, sums, columns);
    return cudaGetLastError();
}

// Which of a map's sixteen words is the address that it was made of; -1: none.
EXPORT int address_in_map(const float *p, int rows, int columns) {
    alignas(64) CUtensorMap map;
    int r = encode(&map, p, rows, columns);
    for (int i = 0; !r && i < 16; i++)
        if (map.opaque[i] == (u64)p) return i;
    return -1;
}
