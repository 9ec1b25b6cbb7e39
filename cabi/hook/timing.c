/*
 * How long operations take on the device: of a few, so that nothing is slower for it.
 *
 * An operation that is timed runs between two events, put on its stream after all that it waits for. Before them
 * the stream is kept busy for some microseconds, by waits for what has happened already: it is then with the
 * device, together with its events, before the first of them is reached, and between them lies no time in
 * which the device had nothing to do. Where that one has been reached too early all the same, nothing is told.
 * An event more, right before the first, says what events take without anything between them.
 *
 * What is timed is chosen by how often the same function was launched in the same dimensions: the second to fourth
 * launch, then ever fewer, one of MOST at last, irregularly so that no pattern of a program agrees with it.
 * One operation at a time is timed; while one is, others are not, and never wait.
 */
#include "timing.h"
#include "captures.h"
#include "contexts.h"
#include "progress.h"
#include "real.h"
#include "shared.h"

#define KINDS 4096 /* counters; power of two */
#define MOST 512   /* launches of a kind to one that is timed */
#define PENDING 64 /* timed and not read */
#define LEAST_WAITS 8
#define MOST_WAITS 256 /* that the driver takes in one call */
#define ENOUGH 32      /* after so many in time, one after the other, fewer waits may do: the stream is busy of itself */

static struct {
    CUresult (*create)(CUevent *, unsigned);
    CUresult (*record[2])(CUevent, CUstream);
    CUresult (*query)(CUevent);
    CUresult (*elapsed)(float *, CUevent, CUevent);
    CUresult (*batch[2])(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned);
    CUresult (*exchange)(int *);
    bool asked, found;
} driver;

typedef struct psk_timed {
    CUevent before, begin, end;
    uint64_t seq;
} timed;

/* Whoever has set it owns all below. */
static atomic_flag busy = ATOMIC_FLAG_INIT;
static timed ring[PENDING];
static uint32_t first, pending;
static uint32_t waits = 4 * LEAST_WAITS, in_time;

static uint32_t launched[KINDS]; /* atomic */

static uint32_t kind_of(const psk_op *op) { return (op->id * 0x9e3779b1u ^ op->grid ^ (uint32_t)op->kind << 28) * 0x85ebca6bu >> 16 & (KINDS - 1); }

static bool due(const psk_op *op) {
    if (!op->seq || op->kind > PSK_REC_GRAPH || op->waits || op->serial || op->early || op->unsure || (op->flags & PSK_FLAG_CAPTURED)) return false;
    uint32_t kind = kind_of(op), n = __atomic_fetch_add(&launched[kind], 1, __ATOMIC_RELAXED);
    uint32_t of = n / 2 < MOST ? n / 2 : MOST;
    return n && (of < 2 || ((n ^ kind) * 0x9e3779b1u >> 12) % of == 0);
}

static bool find_driver(void) {
    if (driver.asked) return driver.found;
    driver.asked = true;
    driver.create = (CUresult(*)(CUevent *, unsigned))psk_driver_symbol("cuEventCreate");
    driver.record[0] = (CUresult(*)(CUevent, CUstream))psk_driver_symbol("cuEventRecord");
    driver.record[1] = (CUresult(*)(CUevent, CUstream))psk_driver_symbol("cuEventRecord_ptsz");
    driver.query = (CUresult(*)(CUevent))psk_driver_symbol("cuEventQuery");
    driver.elapsed = (CUresult(*)(float *, CUevent, CUevent))psk_driver_symbol("cuEventElapsedTime");
    driver.batch[0] = (CUresult(*)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned))psk_driver_symbol("cuStreamBatchMemOp_v2");
    driver.batch[1] = (CUresult(*)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned))psk_driver_symbol("cuStreamBatchMemOp_v2_ptsz");
    driver.exchange = (CUresult(*)(int *))psk_driver_symbol("cuThreadExchangeStreamCaptureMode");
    driver.found = driver.create && driver.record[0] && driver.record[1] && driver.query && driver.elapsed && driver.batch[0] && driver.batch[1] && driver.exchange;
    return driver.found;
}

static uint32_t nanoseconds(float ms) { return ms > 0 ? ms < 4000 ? (uint32_t)(ms * 1e6f) : UINT32_MAX : 0; }

/* Tells of those that have ended. */
static void collect(void) {
    for (; pending; first = (first + 1) % PENDING, pending--) {
        timed *x = &ring[first];
        float took, empty;
        CUresult r = driver.query(x->end);
        if (r == CUDA_ERROR_NOT_READY) return;
        if (r || driver.elapsed(&took, x->begin, x->end) || driver.elapsed(&empty, x->before, x->begin)) continue;
        uint64_t n = psk_S.ntimings;
        psk_S.timings[n % PSK_TIMINGS] = (psk_timing){.seq = x->seq, .ns = nanoseconds(took), .empty_ns = nanoseconds(empty)};
        __atomic_store_n(&psk_S.ntimings, n + 1, __ATOMIC_RELEASE);
    }
}

static bool create(timed *x) {
    return x->end || (!driver.create(&x->before, 0) && !driver.create(&x->begin, 0) && !driver.create(&x->end, 0));
}

/* Keeps the stream busy: the device reads a word in host memory so many times. Not that of its progress: of a new
 * stream's the first write, past the 2^31st operation, is below what was there before. The one beside it never changes. */
static bool dawdle(psk_op *op) {
    CUstreamBatchMemOpParams all[MOST_WAITS];
    uint32_t *word = &psk_S.progress[op->stream_index * 16 + 1];
    CUstreamBatchMemOpParams one = {.value = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = (CUdeviceptr)(uintptr_t)word, .value = *word, .flags = CU_STREAM_WAIT_VALUE_GEQ}};
    for (uint32_t i = 0; i < waits; i++) all[i] = one;
    return !driver.batch[op->ptsz](op->stream, waits, all, 0);
}

static bool start(psk_op *op) {
    if (psk_other_context()) return false; /* events are of one */
    collect();
    timed *x = &ring[(first + pending) % PENDING];
    if (pending == PENDING || !create(x) || !dawdle(op) || driver.record[op->ptsz](x->before, op->stream) || driver.record[op->ptsz](x->begin, op->stream)) return false;
    if (op->locked) op->locked->queued += waits + 3;
    x->seq = op->seq;
    op->timed = x;
    return true;
}

void psk_time_begin(psk_op *op) {
    if (!due(op) || !psk_S.progress || !psk_have_memops() || atomic_load(&psk_captures) || atomic_flag_test_and_set(&busy)) return;
    /* To ask for an event may invalidate a capture that another thread has just begun, unless this one says that it does not mean that. */
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!find_driver() || driver.exchange(&mode)) {
        atomic_flag_clear(&busy);
        return;
    }
    bool started = start(op);
    driver.exchange(&mode);
    if (!started) atomic_flag_clear(&busy);
}

/* A job whose stream runs empty takes many waits, one that queues work ahead none. What came too early is tried
 * again with the next of its kind, as long as more waits may help. */
static void adapt(const psk_op *op, bool late) {
    if (late) {
        if (++in_time < ENOUGH) return;
        waits -= waits / 4;
        if (waits < LEAST_WAITS) waits = LEAST_WAITS;
    } else {
        PSK_COUNT(psk_S.timings_lost);
        if (waits < MOST_WAITS) {
            waits = 2 * waits < MOST_WAITS ? 2 * waits : MOST_WAITS;
            __atomic_fetch_sub(&launched[kind_of(op)], 1, __ATOMIC_RELAXED);
        }
    }
    in_time = 0;
}

void psk_time_end(psk_op *op) {
    timed *x = op->timed;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver.exchange(&mode);
    if (!driver.record[op->ptsz](x->end, op->stream)) {
        bool late = driver.query(x->begin) == CUDA_ERROR_NOT_READY; /* the device has yet to come to it */
        pending += late;
        adapt(op, late);
    }
    driver.exchange(&mode);
    atomic_flag_clear(&busy);
}
