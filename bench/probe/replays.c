/* replays.c - the wrappers of launches: what a launch names, and which ones are tried. */
#define _GNU_SOURCE
#include "replays.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

driver D;
FILE *replays_out;
function *replays_current;
atomic_bool replays_armed;
CUstream replays_stream;

static unsigned per_key;     /* so many launches of a function, grid and block are tried */
static uint64_t deadline_ns; /* after which none is */
static const char *banned;   /* NAME "\n" NAME ...: functions that are not to be issued again */

static void find(void) {
#define FIND(name, type, args) *(void **)&D.name = psk_driver_symbol(#name);
    DRIVER(FIND)
#undef FIND
}

void replays_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
}

void replays_fail(const char *what, CUresult r) {
    fprintf(stderr, "replays: %s: error %d, at function %s\n", what, r, replays_current ? replays_current->name : "none");
    if (replays_out) {
        fprintf(replays_out, "{\"failed\":\"%.60s\",\"error\":%d,\"name\":\"%s\"}\n", what, r, replays_current ? replays_current->name : "");
        fclose(replays_out);
    }
    _exit(70);
}

CUresult replays_wait(CUstream s) {
    uint64_t began = psk_now_ns();
    CUresult r;
    while ((r = D.cuStreamQuery(s)) == CUDA_ERROR_NOT_READY)
        if (psk_now_ns() - began > 10000000000ull) replays_fail("a replay does not end", r);
    return r;
}

/* ---- functions ---- */

#define FUNCTIONS 8192 /* power of two */
static function *functions[FUNCTIONS];
static uint32_t nfunctions;

static bool is_banned(const char *name) {
    size_t n = strlen(name);
    for (const char *p = banned; n && p && (p = strstr(p, name)); p += n)
        if ((p == banned || p[-1] == '\n') && (p[n] == '\n' || !p[n])) return true;
    return false;
}

static function *query(CUfunction handle) {
    function *f = calloc(1, sizeof *f);
    const char *name = NULL;
    size_t offset, size;
    bool kernel = D.cuFuncGetName && D.cuFuncGetName(&name, handle) == CUDA_ERROR_INVALID_HANDLE;
    CUresult (*info)(CUfunction, size_t, size_t *, size_t *) = kernel ? D.cuKernelGetParamInfo : D.cuFuncGetParamInfo;
    if (kernel && D.cuKernelGetName(&name, handle) != CUDA_SUCCESS) name = NULL;
    *f = (function){.handle = handle, .id = nfunctions++, .name = strdup(name ? name : "")};
    CUresult r;
    while ((r = info(handle, f->nparams, &offset, &size)) == CUDA_SUCCESS) {
        f->offsets = realloc(f->offsets, (f->nparams + 1) * sizeof *f->offsets);
        f->sizes = realloc(f->sizes, (f->nparams + 1) * sizeof *f->sizes);
        f->offsets[f->nparams] = offset;
        f->sizes[f->nparams++] = size;
        if (offset + size > f->bytes) f->bytes = offset + size;
    }
    f->opaque = r != CUDA_ERROR_INVALID_VALUE || f->bytes > MAX_BYTES;
    f->banned = is_banned(f->name);
    fprintf(replays_out, "{\"function\":%u,\"name\":\"%s\",\"opaque\":%d,\"bytes\":%zu}\n", f->id, f->name, f->opaque, f->bytes);
    return f;
}

static function *function_of(CUfunction handle) {
    for (unsigned i = ((uint64_t)handle * 0x9e3779b97f4a7c15ull) >> 48;; i++) {
        function **f = &functions[i & (FUNCTIONS - 1)];
        if (!*f) *f = query(handle);
        if ((*f)->handle == handle) return *f;
    }
}

/* ---- how many of a function and grid were tried ---- */

#define KEYS 65536 /* power of two */
static struct {
    function *f;
    uint32_t grid, tried;
} keys[KEYS];

static bool wanted(function *f, uint32_t grid) {
    for (unsigned i = (f->id * 0x9e3779b1u ^ grid) & (KEYS - 1);; i = (i + 1) & (KEYS - 1)) {
        if (!keys[i].f) {
            keys[i].f = f;
            keys[i].grid = grid;
        }
        if (keys[i].f == f && keys[i].grid == grid) return keys[i].tried < per_key && psk_now_ns() < deadline_ns && ++keys[i].tried;
    }
}

/* ---- what a launch names ---- */

/* Device memory that is not of the allocator, as a library makes for itself. */
static block *foreign_at(launch *l, uint64_t addr) {
    uint32_t type = psk_memory_type(addr);
    if (type == CU_MEMORYTYPE_HOST) l->nhost++;
    if (type != CU_MEMORYTYPE_DEVICE) return NULL;
    CUdeviceptr base;
    size_t bytes;
    if (D.cuMemGetAddressRange_v2(&base, &bytes, addr) != CUDA_SUCCESS) return NULL;
    for (unsigned i = 0; i < l->nnamed; i++)
        if (l->named[i]->base == base) return l->named[i];
    if (l->nnamed == MAX_NAMED) return NULL;
    l->foreign[l->nnamed] = (block){.base = base, .bytes = bytes, .room = bytes, .foreign = true};
    return &l->foreign[l->nnamed];
}

static void read_word(launch *l, unsigned at) {
    uint64_t value;
    memcpy(&value, l->params + at, 8);
    if (!psk_may_be_address(value) || l->nwords == MAX_WORDS) return;
    block *b = replays_block_at(value);
    if (!b) b = foreign_at(l, value);
    if (!b) return;
    unsigned i = 0;
    while (i < l->nnamed && l->named[i] != b) i++;
    if (i == MAX_NAMED) return;
    if (i == l->nnamed) {
        l->named[l->nnamed++] = b;
        l->offset[i] = l->total;
        l->total += (b->bytes + 4095) & ~4095ull;
    }
    l->words[l->nwords++] = (word){(uint16_t)at, (uint16_t)i, value - b->base};
}

static void read_params(launch *l, void **params, void **extra) {
    function *f = l->f;
    if (params) {
        for (unsigned i = 0; i < f->nparams; i++) memcpy(l->params + f->offsets[i], params[i], f->sizes[i]);
    } else if (extra) {
        for (; *extra != CU_LAUNCH_PARAM_END; extra += 2)
            if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) memcpy(l->params, extra[1], f->bytes);
    }
    for (unsigned i = 0; i < f->nparams; i++)
        for (size_t at = (f->offsets[i] + 7) & ~7ull; at + 8 <= f->offsets[i] + f->sizes[i]; at += 8) read_word(l, at);
}

/* A block is fresh as long as nothing was done with it since it was made: as its contents say, for
 * copies and fills are not seen here. */
static void find_fresh(launch *l) {
    static summer now;
    span spans[MAX_NAMED];
    unsigned n = 0, who[MAX_NAMED];
    for (unsigned i = 0; i < l->nnamed; i++) {
        block *b = l->named[i];
        l->fresh[i] = false;
        if (b->born && !b->named) {
            who[n] = i;
            spans[n++] = (span){b->base, b->bytes};
        }
        b->named = true;
    }
    if (!n) return;
    OK(D.cuCtxSynchronize());
    replays_sum(&now, replays_stream, spans, n);
    OK(replays_wait(replays_stream));
    for (unsigned k = 0; k < n; k++) l->fresh[who[k]] = sum_equal(now.sums[k], l->named[who[k]]->contents);
}

/* What a replay keeps of the attributes: not those that tie it to what ran before or after it, nor its priority. */
static bool kept_attribute(int id) { return id == 4 || id == 5 || id == 9 || id == 10 || id == 11 || id == 14; }

static const char *not_tried(launch *l, int ptsz) {
    if (psk_stream_capturing(l->config.hStream, ptsz)) return "captured";
    if (l->f->opaque) return "opaque";
    if (l->api == 'c') return "cooperative";
    if (l->f->banned) return "banned";
    if (!l->nnamed) return "names nothing";
    if (l->nnamed == MAX_NAMED || l->total > replays_area) return "too big";
    return wanted(l->f, psk_grid_hash(l->config.gridDimX, l->config.gridDimY, l->config.gridDimZ, l->config.blockDimX, l->config.blockDimY, l->config.blockDimZ)) ? NULL : "enough";
}

static launch current;

/* The launch that is about to be made, locked until after(); NULL while nothing is armed. */
static launch *before(const CUlaunchConfig *c, char api, CUfunction handle, int ptsz, void **params, void **extra) {
    if (PSK_LIKELY(!atomic_load(&replays_armed)) || !handle || !c) return NULL;
    pthread_mutex_lock(&replays_mu);
    launch *l = &current;
    l->f = replays_current = function_of(handle);
    l->config = *c;
    l->api = api;
    l->nwords = l->nnamed = l->nhost = l->nattr_ids = 0;
    l->total = 0;
    l->config.attrs = l->attrs;
    l->config.numAttrs = 0;
    for (unsigned i = 0; i < c->numAttrs && i < MAX_ATTRS; i++) {
        l->attr_ids[l->nattr_ids++] = c->attrs[i].id;
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && c->attrs[i].value.cooperative) l->api = 'c';
        if (kept_attribute(c->attrs[i].id)) l->attrs[l->config.numAttrs++] = c->attrs[i];
    }
    if (!l->f->opaque) {
        read_params(l, params, extra);
        if (l->nnamed && !psk_stream_capturing(c->hStream, ptsz)) find_fresh(l);
    }
    const char *why = not_tried(l, ptsz);
    fprintf(replays_out, "{\"launch\":%u,\"fresh\":\"", l->f->id);
    for (unsigned i = 0; i < l->nnamed; i++) fputc('0' + l->fresh[i], replays_out);
    fprintf(replays_out, "\",\"not\":\"%s\"}\n", why ? why : "");
    l->tried = !why;
    if (l->tried) replays_trial_before(l);
    return l;
}

static CUresult after(launch *l, CUresult r) {
    if (PSK_LIKELY(!l)) return r;
    if (l->tried) replays_trial_after(l, r);
    replays_current = NULL;
    pthread_mutex_unlock(&replays_mu);
    return r;
}

/* ---- issued again ---- */

issue *replays_issue(const launch *l, const uint64_t *to) {
    issue *i = aligned_alloc(64, (sizeof *i + 63) & ~63ul);
    if (!i) abort();
    i->f = l->f;
    i->config = l->config;
    memcpy(i->attrs, l->attrs, sizeof i->attrs);
    i->config.attrs = i->attrs;
    memcpy(i->params, l->params, l->f->bytes);
    for (unsigned w = 0; w < l->nwords; w++) {
        uint64_t base = to[l->words[w].block], word = base + l->words[w].inside;
        if (base) memcpy(i->params + l->words[w].at, &word, 8);
    }
    i->pointers = calloc(l->f->nparams + 1, sizeof *i->pointers);
    for (unsigned p = 0; p < l->f->nparams; p++) i->pointers[p] = i->params + l->f->offsets[p];
    return i;
}

void replays_issue_free(issue *i) {
    free(i->pointers);
    free(i);
}

CUresult replays_go(issue *i, CUstream s) {
    i->config.hStream = s;
    return D.cuLaunchKernelEx(&i->config, i->f->handle, i->pointers, NULL);
}

/* ---- the wrappers ---- */

#define LAUNCH(name, ptsz)                                                                                            \
    CUresult psk_w_##name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                          unsigned shared, CUstream s, void **params, void **extra) {                                 \
        CUlaunchConfig c = {gx, gy, gz, bx, by, bz, shared, s, NULL, 0};                                              \
        launch *l = before(&c, 'k', f, ptsz, params, extra);                                                          \
        return after(l, PSK_REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, params, extra));                         \
    }
LAUNCH(cuLaunchKernel, 0)
LAUNCH(cuLaunchKernel_ptsz, 1)

#define LAUNCH_EX(name, ptsz)                                                                  \
    CUresult psk_w_##name(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) { \
        launch *l = before(c, 'x', f, ptsz, params, extra);                                    \
        return after(l, PSK_REAL(name)(c, f, params, extra));                                  \
    }
LAUNCH_EX(cuLaunchKernelEx, 0)
LAUNCH_EX(cuLaunchKernelEx_ptsz, 1)

#define LAUNCH_COOPERATIVE(name, ptsz)                                                                                \
    CUresult psk_w_##name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                          unsigned shared, CUstream s, void **params) {                                               \
        CUlaunchConfig c = {gx, gy, gz, bx, by, bz, shared, s, NULL, 0};                                              \
        launch *l = before(&c, 'c', f, ptsz, params, NULL);                                                           \
        return after(l, PSK_REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, params));                                \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, 0)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, 1)

CUresult psk_w_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags) {
    return PSK_REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
}

/* ---- for the script ---- */

/* Tries launches from here on. module: replays_sums.cu, compiled. ban: see banned. */
EXPORT int replays_arm(const char *out, const char *module, uint64_t limit_bytes, unsigned each, double seconds, const char *ban) {
    replays_open();
    if (!(replays_out = fopen(out, "w"))) return 1;
    banned = strdup(ban);
    per_key = each;
    deadline_ns = psk_now_ns() + (uint64_t)(seconds * 1e9);
    if (!replays_stream) OK(D.cuStreamCreateWithPriority(&replays_stream, 1, 0));
    replays_sums_load(module);
    replays_trial_open(limit_bytes);
    atomic_store(&replays_armed, true);
    return 0;
}

EXPORT void replays_disarm(void) {
    pthread_mutex_lock(&replays_mu);
    atomic_store(&replays_armed, false);
    replays_trial_close();
    fprintf(replays_out, "{\"end\":1,\"late\":%d}\n", psk_now_ns() >= deadline_ns);
    fclose(replays_out);
    replays_out = NULL;
    pthread_mutex_unlock(&replays_mu);
}
