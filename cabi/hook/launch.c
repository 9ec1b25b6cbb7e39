/* Kernel launches. */
#include "captures.h"
#include "contexts.h"
#include "func.h"
#include "issue.h"
#include "layout.h"
#include "lists.h"
#include "names.h"
#include "op.h"
#include "real.h"
#include "record.h"
#include "shared.h"
#include "strict.h"
#include "within.h"

/* The engine makes launches again in its own context. */
static bool recordable(const psk_op *op) { return op->mode == PSK_MODE_STRICT && !(op->flags & PSK_FLAG_CAPTURED) && !psk_other_context(); }

/* Records a launch, and says what it does with what it names, if that is known: what it writes to goes first. */
static void record(psk_op *op, const psk_layout *l, CUfunction f, const psk_dimensions *d, void **params, void **extra, uint32_t written) {
    op->recorded = psk_record_launch(l, f, d, params, extra);
    if (!op->recorded || op->n || !written) return; /* what it reaches besides was named already */
    for (uint32_t i = 0; i < written; i++) psk_op_address(op, psk_record_word(l, psk_S.funcs[l->id].written[i], params, extra));
    if (op->n > PSK_MOST_WRITTEN_SLOTS) return;
    if (op->n) op->flags |= (uint16_t)(PSK_FLAG_HAS_DST | (op->n - 1) << PSK_MORE_DST_SHIFT);
    op->flags |= PSK_FLAG_ACCESS;
}

/* columns and rows: the grid's first and second dimension. c is what has the others, and attributes; NULL for what cannot be recorded. */
static void begin(psk_op *op, CUfunction f, uint32_t grid, unsigned columns, unsigned rows, CUstream stream, int ptsz, void **params, void **extra, const CUlaunchConfig *c) {
    psk_op_begin(op, PSK_REC_LAUNCH, 0, stream, ptsz);
    op->grid = grid;
    psk_layout *l = psk_func_layout(f);
    PSK_COUNT(psk_S.launches);
    if (PSK_LIKELY(l != NULL)) {
        op->id = l->id;
        op->used = psk_list_used(l, params, columns, rows);
        if (op->mode == PSK_MODE_STRICT) psk_strict_function(op, l, params, extra);
        uint32_t recorded = __atomic_load_n(&psk_S.funcs[l->id].record, __ATOMIC_ACQUIRE);
        psk_dimensions d;
        if (PSK_UNLIKELY(recorded) && c && recordable(op) && psk_record_dimensions(&d, c)) record(op, l, f, &d, params, extra, recorded - 1);
        psk_op_params(op, l, params, extra);
        psk_func_release(l);
    } else { /* no function, or out of host memory */
        op->id = UINT32_MAX;
        op->flags |= PSK_FLAG_OPAQUE;
    }
    if (PSK_UNLIKELY(op->flags & PSK_FLAG_OPAQUE)) PSK_COUNT(psk_S.opaque_launches);
}

/* Nothing, unless NCCL launches a kernel within a group: see psk_within_launch. */
static CUresult within(CUfunction f, unsigned columns, unsigned rows, CUstream stream, int ptsz, void **params, void **extra) {
    if (PSK_LIKELY(!psk_within) || psk_within->ops->id != PSK_NCCL_GROUP) return CUDA_SUCCESS;
    psk_layout *l = psk_func_layout(f);
    if (!l) return CUDA_SUCCESS;
    psk_op op;
    psk_op_begin(&op, PSK_REC_LAUNCH, l->id, stream, ptsz);
    op.used = psk_list_used(l, params, columns, rows);
    psk_op_params(&op, l, params, extra);
    psk_func_release(l);
    return psk_within_launch(&op);
}

#define LAUNCH(name, ptsz)                                                                                                 \
    CUresult psk_w_##name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,      \
                          unsigned shared, CUstream s, void **params, void **extra) {                                      \
        if (PSK_UNLIKELY(!f) && psk_probe()) return CUDA_SUCCESS;                                                          \
        if (!psk_active() || PSK_UNLIKELY(!f)) {                                                                           \
            CUresult r = within(f, gx, gy, s, ptsz, params, extra);                                                        \
            return r ? r : PSK_REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, params, extra);                            \
        }                                                                                                                  \
        psk_op op;                                                                                                         \
        begin(&op, f, psk_grid_hash(gx, gy, gz, bx, by, bz), gx, gy, s, ptsz, params, extra,                               \
              &(CUlaunchConfig){gx, gy, gz, bx, by, bz, shared, s, NULL, 0});                                              \
        return PSK_OP_CALL(&op, PSK_REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, params, extra));                      \
    }
LAUNCH(cuLaunchKernel, 0)
LAUNCH(cuLaunchKernel_ptsz, 1)

static bool cooperative(const CUlaunchConfig *c) {
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && c->attrs[i].value.cooperative) return true;
    return false;
}

#define LAUNCH_EX(name, ptsz)                                                                                                                   \
    CUresult psk_w_##name(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {                                                 \
        if (PSK_UNLIKELY(!f) && psk_probe()) return CUDA_SUCCESS;                                                                               \
        if (!psk_active() || PSK_UNLIKELY(!f) || !c) {                                                                                          \
            CUresult r = c ? within(f, c->gridDimX, c->gridDimY, c->hStream, ptsz, params, extra) : CUDA_SUCCESS;                               \
            return r ? r : PSK_REAL(name)(c, f, params, extra);                                                                                 \
        }                                                                                                                                       \
        psk_op op;                                                                                                                              \
        begin(&op, f, psk_grid_hash(c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ), c->gridDimX, c->gridDimY, \
              c->hStream, ptsz, params, extra, c);                                                                                              \
        if (PSK_UNLIKELY(c->numAttrs && cooperative(c))) op.flags |= PSK_FLAG_COOPERATIVE;                                                      \
        return PSK_OP_CALL(&op, PSK_REAL(name)(c, f, params, extra));                                                                           \
    }
LAUNCH_EX(cuLaunchKernelEx, 0)
LAUNCH_EX(cuLaunchKernelEx_ptsz, 1)

#define LAUNCH_COOPERATIVE(name, ptsz)                                                                                \
    CUresult psk_w_##name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                          unsigned shared, CUstream s, void **params) {                                               \
        if (PSK_UNLIKELY(!f) && psk_probe()) return CUDA_SUCCESS;                                                     \
        if (!psk_active() || PSK_UNLIKELY(!f)) {                                                                      \
            CUresult r = within(f, gx, gy, s, ptsz, params, NULL);                                                    \
            return r ? r : PSK_REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, params);                              \
        }                                                                                                             \
        psk_op op;                                                                                                    \
        begin(&op, f, psk_grid_hash(gx, gy, gz, bx, by, bz), gx, gy, s, ptsz, params, NULL, NULL);                    \
        op.flags |= PSK_FLAG_COOPERATIVE;                                                                             \
        return PSK_OP_CALL(&op, PSK_REAL(name)(f, gx, gy, gz, bx, by, bz, shared, s, params));                        \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, 0)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, 1)

CUresult psk_w_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags);

/* One launch per device in one call. The engine works on one device: each is
 * recorded (and gated) before the call; progress follows at the next record. In
 * strict mode, where progress must not come before the call, they are one opaque
 * record on the first stream, and all streams are idle when it is reported. */
static CUresult multi_device_strict(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags) {
    psk_op op;
    begin(&op, list[0].function, 0, 0, 0, list[0].hStream, 0, list[0].kernelParams, NULL, NULL);
    op.flags |= PSK_FLAG_COOPERATIVE | PSK_FLAG_OPAQUE;
    for (unsigned i = 1; i < n; i++) {
        psk_layout *l = psk_func_layout(list[i].function);
        op.used = 0;
        if (l) psk_op_params(&op, l, list[i].kernelParams, NULL);
        psk_func_release(l);
    }
    CUresult r = psk_op_issue(&op);
    if (r == CUDA_SUCCESS) {
        r = PSK_REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
        for (unsigned i = 0; i < n && !(op.flags & PSK_FLAG_CAPTURED); i++) psk_stream_synchronize(list[i].hStream, 0);
    }
    psk_op_done(&op);
    return r;
}

CUresult psk_w_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags) {
    if (!psk_active() || !list || !n) return PSK_REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
    if (PSK_LOAD(psk_S.mode) == PSK_MODE_STRICT) return multi_device_strict(list, n, flags);
    psk_op op;
    for (unsigned i = 0; i < n; i++) {
        const CUDA_LAUNCH_PARAMS *p = &list[i];
        uint32_t grid = psk_grid_hash(p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ);
        begin(&op, p->function, grid, p->gridDimX, p->gridDimY, p->hStream, 0, p->kernelParams, NULL, NULL);
        op.flags |= PSK_FLAG_COOPERATIVE;
        op.no_progress = i + 1 < n;
        psk_op_issue(&op);
        if (i + 1 < n) psk_op_done(&op);
    }
    CUresult r = PSK_REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
    psk_op_done(&op);
    return r;
}
