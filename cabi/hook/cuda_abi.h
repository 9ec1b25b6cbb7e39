/*
 * The part of the CUDA driver's binary interface that the hook (and its test
 * double in cabi/stub) needs, declared here so that building needs no CUDA
 * toolkit. Structures follow the documented layouts; the sizes are asserted.
 */
#ifndef PENSTOCK_CUDA_ABI_H
#define PENSTOCK_CUDA_ABI_H
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUmemGenericAllocationHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};

#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_NON_BLOCKING 1u
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

#define CU_LAUNCH_PARAM_END ((void *)0x00)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)0x02)

enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WAIT_VALUE_EQ = 1, CU_STREAM_WAIT_VALUE_AND = 2, CU_STREAM_WAIT_VALUE_NOR = 3 };
enum { CU_STREAM_WRITE_VALUE_DEFAULT = 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1, CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2 };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2 };
enum { CU_GET_PROC_ADDRESS_SUCCESS = 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2 };
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_ARRAY = 3, CU_MEMORYTYPE_UNIFIED = 4 };
enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_MEMSET = 2,
    CU_GRAPH_NODE_TYPE_HOST = 3,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_EMPTY = 5,
    CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
    CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
    CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL = 8,
    CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT = 9,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
    CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
    CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13,
    CU_GRAPH_NODE_TYPE_MEMCPY_BATCH = 14,
};
enum { CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY = 8 };
enum { CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2, CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3 };
enum { CU_FABRIC_COPY_OPERAND_TYPE_POINTER = 1, CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT = 2 };
enum { CU_MEMCPY_OPERAND_TYPE_POINTER = 1, CU_MEMCPY_OPERAND_TYPE_ARRAY = 2 };
enum {
    CU_LAUNCH_ATTRIBUTE_IGNORE = 0,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY = 3,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP = 9,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN = 10,
    CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14,
};
enum { CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2 };
enum { CU_RESOURCE_TYPE_ARRAY = 0, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1, CU_RESOURCE_TYPE_LINEAR = 2, CU_RESOURCE_TYPE_PITCH2D = 3 };
enum {
    CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
    CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
    CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
    CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
    CU_STREAM_MEM_OP_BARRIER = 6,
    CU_STREAM_MEM_OP_ATOMIC_REDUCTION = 8,
};
enum { CU_STREAM_ATOMIC_REDUCTION_OP_ADD = 0 };
enum { CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32 = 14, CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64 = 22 };

typedef struct {
    int type;
    int id;
} CUmemLocation;

typedef union {
    char pad[64];
    int cooperative;
    unsigned clusterDim[3];
    int clusterSchedulingPolicyPreference;
    int deviceUpdatable; /* of a structure that goes on */
} CUlaunchAttributeValue;

typedef struct {
    int id;
    char pad[4];
    CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* CUDA_MEMCPY3D_PEER has the same layout: its two contexts lie in the reserved fields. */
typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct {
    int type;
    union {
        struct {
            CUdeviceptr ptr;
            size_t rowLength, layerHeight;
            CUmemLocation locHint;
        } ptr;
        struct {
            CUarray array;
            size_t offset[3];
        } array;
    } op;
} CUmemcpy3DOperand;

typedef struct {
    CUmemcpy3DOperand src, dst;
    size_t extent[3];
    int srcAccessOrder;
    unsigned flags;
} CUDA_MEMCPY3D_BATCH_OP;

typedef struct {
    int srcAccessOrder;
    CUmemLocation srcLocHint, dstLocHint;
    unsigned flags;
} CUmemcpyAttributes;

typedef struct {
    int type;
    union {
        struct {
            CUdeviceptr ptr;
            CUmemLocation locHint;
        } ptr;
        struct {
            uint32_t id;
            uint64_t offset;
        } le;
    } op;
} CUfabricCpyOperand;

typedef struct {
    CUfabricCpyOperand src, dst;
    size_t size;
    unsigned flags;
} CUDA_FABRIC_COPY_BATCH_OP;

/* Of a texture: linear memory and pitched memory both begin with their address. */
typedef struct {
    int resType;
    union {
        CUdeviceptr devPtr;
        int reserved[32];
    } res;
    unsigned flags;
} CUDA_RESOURCE_DESC;

/* Waits and writes have the same layout, which begins with the operation in all of them. */
typedef union {
    int operation;
    struct {
        int operation;
        CUdeviceptr address;
        union {
            uint32_t value;
            uint64_t value64;
        };
        unsigned flags;
        CUdeviceptr alias;
    } value;
    struct {
        int operation;
        unsigned flags;
        int reduction, type;
        CUdeviceptr address;
        uint64_t value;
        CUdeviceptr alias;
    } reduction;
    uint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct {
    size_t srcNumBytes, dstNumBytes;
    uint32_t *dstActBytes;
    const void *src;
    void *dst;
    int algo;
    unsigned char padding[20];
} CUmemDecompressParams;

/* Both versions. */
typedef struct {
    CUcontext ctx;
    unsigned count;
    CUstreamBatchMemOpParams *paramArray;
    unsigned flags;
} CUDA_BATCH_MEM_OP_NODE_PARAMS;

/* The first version ends at extra; versions 2 and 3 add kern and ctx. */
typedef struct {
    CUfunction func;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    void **kernelParams;
    void **extra;
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value;
    unsigned elementSize;
    size_t width, height;
    CUcontext ctx; /* second version only */
} CUDA_MEMSET_NODE_PARAMS;

typedef struct {
    int flags;
    int reserved;
    CUcontext copyCtx;
    CUDA_MEMCPY3D copyParams;
} CUDA_MEMCPY_NODE_PARAMS;

typedef struct {
    size_t count;
    CUdeviceptr *dsts, *srcs;
    size_t *sizes;
    CUmemcpyAttributes *attrs;
    size_t *attrsIdxs;
    size_t numAttrs;
    CUcontext ctx;
} CUDA_MEMCPY_BATCH_NODE_PARAMS;

typedef struct {
    int type;
    int reserved0[3];
    union {
        long long reserved1[29];
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_MEMCPY_NODE_PARAMS memcpy;
        CUDA_MEMSET_NODE_PARAMS memset;
        CUDA_BATCH_MEM_OP_NODE_PARAMS memOp;
        CUDA_MEMCPY_BATCH_NODE_PARAMS memcpyBatch;
        struct {
            CUgraph graph;
            int ownership;
        } graph;
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct {
    uint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
    void (*fn)(void *);
    void *userData;
} CUDA_HOST_NODE_PARAMS;

typedef struct {
    int result;
    CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

_Static_assert(sizeof(CUlaunchAttribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig");
_Static_assert(sizeof(CUDA_LAUNCH_PARAMS) == 56, "CUDA_LAUNCH_PARAMS");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "CUDA_MEMCPY2D");
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "CUDA_MEMCPY3D");
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72, "CUDA_KERNEL_NODE_PARAMS");
_Static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP) == 112, "CUDA_MEMCPY3D_BATCH_OP");
_Static_assert(sizeof(CUstreamBatchMemOpParams) == 48, "CUstreamBatchMemOpParams");
_Static_assert(sizeof(CUmemDecompressParams) == 64, "CUmemDecompressParams");
_Static_assert(sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS) == 32, "CUDA_BATCH_MEM_OP_NODE_PARAMS");
_Static_assert(sizeof(CUDA_MEMCPY_BATCH_NODE_PARAMS) == 64, "CUDA_MEMCPY_BATCH_NODE_PARAMS");
_Static_assert(sizeof(CUDA_FABRIC_COPY_BATCH_OP) == 64, "CUDA_FABRIC_COPY_BATCH_OP");
_Static_assert(sizeof(CUgraphNodeParams) == 256, "CUgraphNodeParams");
#endif
