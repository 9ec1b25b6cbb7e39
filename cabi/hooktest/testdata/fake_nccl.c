/*
 * A stand-in for libnccl.so.2, or the user of one (-DUSER): each collective adds
 * 1 to the first word of its buffers, with kernels whose parameters name no
 * buffer, as NCCL's do not; but for ncclLater, a call that is in no table, whose kernels name
 * them. Within a group nothing runs before its outermost end. With fake_nccl_takes_handles
 * each takes a handle of its memory meanwhile, as NCCL does to register a buffer.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct CUstream_st *stream;
int ncclAllReduce(const void *, void *, size_t, int, int, void *, stream);

#ifdef USER
int user_all_reduce(void *buffer, stream s) { return ncclAllReduce(buffer, buffer, 1, 0, 0, NULL, s); }
#else
typedef struct work {
    void *a, *b;
    stream s;
    int named;
} work;
static __thread work pending[64];
static __thread int n, depth;
int fake_nccl_calls, fake_nccl_result, fake_nccl_takes_handles;

static void *driver(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }

static void launch(const char *name, stream s, void **params) {
    static void *module;
    void *f;
    if (!module) ((int (*)(void **, const void *))driver("cuModuleLoadData"))(&module, "image");
    ((int (*)(void **, void *, const char *))driver("cuModuleGetFunction"))(&f, module, name);
    ((int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, stream, void **, void **))driver("cuLaunchKernel"))(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static void run(work w) {
    if (w.named) {
        uint64_t words = 1;
        uint32_t inc = 1;
        launch("touch_add", w.s, (void *[]){&w.a, &words, &inc});
        launch("touch_add", w.s, (void *[]){&w.b, &words, &inc});
        return;
    }
    work *copy = malloc(sizeof *copy); /* the kernel frees it */
    *copy = w;
    launch("indirect_add", w.s, (void *[]){&copy});
}

static int put_as(const void *a, const void *b, stream s, int named) {
    work w = {(void *)a, (void *)b, s, named};
    uint64_t handle;
    if (fake_nccl_takes_handles) ((int (*)(uint64_t *, const void *))driver("cuMemRetainAllocationHandle"))(&handle, (const char *)a + fake_nccl_takes_handles);
    fake_nccl_calls++;
    if (depth)
        pending[n++] = w;
    else
        run(w);
    return fake_nccl_result;
}

static int put(const void *a, const void *b, stream s) { return put_as(a, b, s, 0); }

int ncclLater(const void *a, void *b, stream s) { return put_as(a, b, s, 1); }
int ncclAllReduce(const void *a, void *b, size_t c, int t, int o, void *comm, stream s) { return (void)c, (void)t, (void)o, (void)comm, put(a, b, s); }
int ncclReduce(const void *a, void *b, size_t c, int t, int o, int r, void *comm, stream s) { return (void)c, (void)t, (void)o, (void)r, (void)comm, put(a, b, s); }
int ncclBroadcast(const void *a, void *b, size_t c, int t, int r, void *comm, stream s) { return (void)c, (void)t, (void)r, (void)comm, put(a, b, s); }
int ncclBcast(void *b, size_t c, int t, int r, void *comm, stream s) { return ncclBroadcast(b, b, c, t, r, comm, s); } /* by its own export, which is interposed */
int ncclAllGather(const void *a, void *b, size_t c, int t, void *comm, stream s) { return (void)c, (void)t, (void)comm, put(a, b, s); }
int ncclReduceScatter(const void *a, void *b, size_t c, int t, int o, void *comm, stream s) { return (void)c, (void)t, (void)o, (void)comm, put(a, b, s); }
int ncclSend(const void *a, size_t c, int t, int p, void *comm, stream s) { return (void)c, (void)t, (void)p, (void)comm, put(a, NULL, s); }
int ncclRecv(void *b, size_t c, int t, int p, void *comm, stream s) { return (void)c, (void)t, (void)p, (void)comm, put(b, NULL, s); }
int ncclAlltoAll(const void *a, void *b, size_t c, int t, void *comm, stream s) { return (void)c, (void)t, (void)comm, put(a, b, s); }
int ncclGather(const void *a, void *b, size_t c, int t, int r, void *comm, stream s) { return (void)c, (void)t, (void)r, (void)comm, put(a, b, s); }
int ncclScatter(const void *a, void *b, size_t c, int t, int r, void *comm, stream s) { return (void)c, (void)t, (void)r, (void)comm, put(a, b, s); }
int ncclPutSignal(const void *a, size_t c, int t, int p, void *win, size_t offset, int sig, int ctx, unsigned flags, void *comm, stream s) { return (void)c, (void)t, (void)p, (void)win, (void)offset, (void)sig, (void)ctx, (void)flags, (void)comm, put(a, NULL, s); }
#define CONFIG(name) int name##Config(const void *a, void *b, size_t c, int t, void *comm, stream s, const void *config) { return (void)c, (void)t, (void)comm, (void)config, put(a, b, s); }
#define CONFIG_OP(name) int name##Config(const void *a, void *b, size_t c, int t, int o, void *comm, stream s, const void *config) { return (void)c, (void)t, (void)o, (void)comm, (void)config, put(a, b, s); }
CONFIG(ncclAllGather)
CONFIG(ncclAlltoAll)
CONFIG_OP(ncclAllReduce)
CONFIG_OP(ncclReduceScatter)
CONFIG_OP(ncclBroadcast)
CONFIG_OP(ncclGather)
CONFIG_OP(ncclScatter)
int ncclReduceConfig(const void *a, void *b, size_t c, int t, int o, int r, void *comm, stream s, const void *config) { return (void)c, (void)t, (void)o, (void)r, (void)comm, (void)config, put(a, b, s); }

static int registered(void) { return fake_nccl_calls++, fake_nccl_result; }
int ncclCommRegister(void *comm, void *p, size_t n, void **handle) { return (void)comm, (void)p, (void)n, (void)handle, registered(); }
int ncclCommWindowRegister(void *comm, void *p, size_t n, void **win, int flags) { return (void)comm, (void)p, (void)n, (void)win, (void)flags, registered(); }
int ncclRedOpCreatePreMulSum(int *op, void *scalar, int t, int on_host, void *comm) { return (void)op, (void)scalar, (void)t, (void)on_host, (void)comm, registered(); }
int ncclGroupStart(void) {
    depth++;
    return 0;
}
int ncclGroupEnd(void) {
    if (depth == 0) return 5;
    if (--depth == 0)
        for (int i = 0; i < n; i++) run(pending[i]);
    if (depth == 0) n = 0;
    return fake_nccl_result;
}
int ncclGroupSimulateEnd(void *info) {
    (void)info;
    if (--depth == 0) n = 0;
    return 0;
}
#endif
