/*
 * Strict mode: no operation reaches the driver before its memory is on the
 * device or the copies that bring it are submitted. The header says what is
 * waited for and in which order; here is how.
 *
 * Waits are on the CPU and outside the driver, under the lock of the operation's
 * stream so that the order of the stream is kept. They end when the engine has
 * done its part, when it has failed (`refuse`: the operation is not run), or when
 * it left strict mode.
 *
 * Locks: the grant lock, which belongs to the operation that asks, is taken
 * before a stream's lock, and released when the grant is given. The parts of a graph
 * are operations of which the first takes both, for all of them. Of several
 * stream locks (an NCCL group) the lower index is taken first.
 *
 * Where the driver cannot write progress for a stream (one with the shared
 * index, or when stream memory operations fail), the operation is `serial`: the
 * stream is idle before its lock is released, and progress is stored from here.
 */
#define _GNU_SOURCE
#include "strict.h"
#include "captures.h"
#include "progress.h"
#include "ring.h"
#include "shared.h"
#include "streams.h"
#include "trail.h"

#include <pthread.h>
#include <sched.h>

/* A wait first spins, as most are shorter than a switch of threads, then lets
 * others run, and at last sleeps: the engine may need the core. */
#define SPIN_NS 50000
#define YIELD_NS 10000000
#define NAP_SHARE 128       /* a nap takes this part of the wait so far, so that the wait is longer by less than one in a hundred, */
#define MOST_NAP_NS 1000000 /* and this at most: a job may wait for seconds, and its threads need not look all the time */
#define QUEUE_NAP_NS 50000  /* of a thread that has run ahead of the device by all that the queue holds */

#define PROGRESS_AT_MOST 64 /* operations between progress writes, so that the run-ahead limit sees progress */

#define IN_EVERY_LAUNCH static inline __attribute__((always_inline)) /* and elsewhere, so the compiler would call it */

static pthread_mutex_t grant_mu = PTHREAD_MUTEX_INITIALIZER;

static void pause_for(uint64_t waited_ns) {
    if (waited_ns < SPIN_NS)
        __builtin_ia32_pause();
    else if (waited_ns < YIELD_NS)
        sched_yield();
    else
        psk_nap((long)(waited_ns < MOST_NAP_NS * NAP_SHARE ? waited_ns / NAP_SHARE : MOST_NAP_NS));
}

static bool left(void) { return PSK_LOAD(psk_S.mode) != PSK_MODE_STRICT; }
static bool reached(uint32_t word, uint32_t value) { return (int32_t)(word - value) >= 0; }
static uint32_t *progress_word(const psk_op *op) { return &psk_S.progress[op->stream_index * 16]; }

/* ---- asking for a grant ---- */

bool psk_power_of_64(uint64_t n) { return (n & (n - 1)) == 0 && __builtin_ctzll(n) % 6 == 0; }

static void ask(psk_op *op) {
    if (!op->follows) pthread_mutex_lock(&grant_mu);
    op->asks = true;
    psk_S.inspect_n = 0;
}

static void asked(psk_op *op) {
    if (!op->asks || op->more) return; /* of several parts of a graph the last one gives the lock back */
    op->asks = false;
    pthread_mutex_unlock(&grant_mu);
}

void psk_strict_function(psk_op *op, const psk_layout *l, void **params, void **extra) {
    if (op->flags & PSK_FLAG_CAPTURED) return;
    uint32_t id = l->id;
    psk_func *f = &psk_S.funcs[id];
    uint64_t n = __atomic_add_fetch(&f->launches, 1, __ATOMIC_RELAXED);
    uint32_t state = PSK_LOAD(f->inspect);
    bool trails = PSK_LOAD(psk_S.trails) != 0;
    if (PSK_UNLIKELY(trails)) psk_trail_read(op, l, params, extra);
    /* The last row stands for all functions beyond the table. */
    bool due = state == PSK_INSPECT_ALWAYS || id == PSK_MAX_FUNCS - 1 || (state == PSK_INSPECT_NEW && PSK_LOAD(f->inspected) < 2) || psk_power_of_64(n);
    if (PSK_UNLIKELY(state == PSK_INSPECT_FOLLOWS)) {
        bool follows = trails && psk_trail_follow(op, PSK_LOAD(f->follows));
        due = due || !follows || n % PSK_FOLLOWS_CHECKED == 0;
        if (!due) PSK_COUNT(psk_S.followed);
    }
    if (PSK_UNLIKELY(due)) psk_strict_inspect(op);
}

void psk_strict_inspect(psk_op *op) {
    if (op->asks || (op->flags & PSK_FLAG_CAPTURED)) return;
    ask(op);
    op->flags |= PSK_FLAG_INSPECT;
}

/* ---- how far a stream is ---- */

static void idle_now(psk_stream *s) {
    s->nmarks = 0;
    s->finished = s->queued;
}

/* Whether nothing of a context runs any more: as (*cuda.Error).EndsContext, and when it or the driver is gone. */
static bool ends_context(CUresult r) {
    switch ((int)r) {
    case 4: case 214: case 220: case 700: case 702: case 709: case 710: case 714: case 715: case 716: case 717: case 718: case 719: return true;
    }
    return false;
}

/* Waits for the stream and says so. Any other error is a wait that was not one: of a thread without a context, whose own
 * operation would be refused, too, or of the legacy stream while another captures. What is queued runs on then. */
static CUresult drain(psk_op *op, uint32_t value) {
    CUresult r = psk_stream_synchronize(op->stream, op->ptsz);
    if (r != CUDA_SUCCESS && !ends_context(r)) {
        op->locked->unreported = true;
        return r;
    }
    idle_now(op->locked);
    if (psk_S.progress) __atomic_store_n(progress_word(op), value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

/* Has the stream report everything put on it so far. */
static CUresult report(psk_op *op, uint32_t value) {
    psk_stream *s = op->locked;
    s->unreported = false;
    if (!op->serial && !s->nmarks) s->seen = PSK_LOAD(*progress_word(op));
    if (op->serial || !psk_memop_write(op->stream, op->ptsz, progress_word(op), value)) {
        return drain(op, value);
    }
    s->queued++;
    const uint32_t n = sizeof s->marks / sizeof s->marks[0];
    if (s->nmarks && (s->nmarks == n || s->queued - s->marks[s->nmarks - 1].queued < PSK_MAX_UNFINISHED / n)) {
        if (s->nmarks < n) return CUDA_SUCCESS; /* too near to the mark before it to be worth one */
        s->nmarks--;
    }
    s->marks[s->nmarks].value = value;
    s->marks[s->nmarks++].queued = s->queued;
    return CUDA_SUCCESS;
}

static void forget_marks(psk_op *op) {
    psk_stream *s = op->locked;
    uint32_t word = PSK_LOAD(*progress_word(op)), n = 0;
    if (word == s->seen) return; /* one that a quiet stream left long ago compares as if it were ahead */
    while (n < s->nmarks && reached(word, s->marks[n].value)) s->finished = s->marks[n++].queued;
    if (!n) return;
    s->nmarks -= n;
    for (uint32_t i = 0; i < s->nmarks; i++) s->marks[i] = s->marks[i + n];
}

/* Words compare cyclically, within half the range: marks of so long ago must not be there when others follow. */
#define LONG_AGO (1u << 30)

/* Whether what is queued writes to the word what was seen there, of 2^32 operations ago or of none: then it does not tell
 * that the stream has moved. */
static bool seen_comes_again(const psk_stream *s) {
    uint32_t first = s->marks[0].value, last = (uint32_t)PSK_LOAD(psk_S.head);
    return s->seen != first && reached(s->seen, first) && reached(last, s->seen);
}

/* Keeps a thread that runs ahead of the device out of the driver's full queue. */
static void wait_for_queue(psk_op *op) {
    psk_stream *s = op->locked;
    while (s->queued - s->finished >= PSK_MAX_UNFINISHED) {
        forget_marks(op);
        if (s->queued - s->finished < PSK_MAX_UNFINISHED || left()) return;
        if (s->nmarks && !seen_comes_again(s))
            psk_nap(QUEUE_NAP_NS);
        else if (drain(op, (uint32_t)s->last)) /* nothing that it queued will be reported, or not so that it shows */
            return;
    }
}

/* ---- residency ---- */

static bool only_reads(const psk_op *op, uint32_t i) {
    return (op->flags & PSK_FLAG_ACCESS) && i >= psk_written(op->flags);
}

/* Passes the slots, from op->settled on, that are on the device or arriving. One
 * that was seen so stays so: its slot_last_seq is stored. False at one that is ABSENT, or GUARDED and may be written to. */
IN_EVERY_LAUNCH bool settle(psk_op *op) {
    for (; op->settled < op->n; op->settled++) {
        uint32_t slot = op->slots[op->settled];
        uint8_t state = __atomic_load_n(&psk_S.slot_state[slot], __ATOMIC_SEQ_CST);
        if (PSK_LIKELY(state == PSK_SLOT_RESIDENT)) continue;
        if (state == PSK_SLOT_ABSENT || (state == PSK_SLOT_GUARDED && !only_reads(op, op->settled))) return false;
        if (state != PSK_SLOT_ARRIVING) continue; /* freed meanwhile */
        uint32_t ticket = PSK_LOAD(psk_S.slot_ticket[slot]);
        if (psk_S.arrived && reached(PSK_LOAD(*psk_S.arrived), ticket)) continue;
        if (!op->arriving || !reached(op->ticket, ticket)) op->ticket = ticket;
        op->arriving = true;
    }
    return true;
}

static CUresult refusal(void) {
    CUresult code = (CUresult)PSK_LOAD(psk_S.refuse);
    if (code) PSK_COUNT(psk_S.refused);
    return code;
}

/* Until nothing named is ABSENT and, for one that asks, the grant is there. */
static CUresult wait_on_cpu(psk_op *op) {
    CUresult r = CUDA_SUCCESS;
    PSK_COUNT(psk_S.cpu_waits);
    uint64_t from = psk_now_ns(), now = from;
    for (;; pause_for((now = psk_now_ns()) - from)) {
        if ((!op->asks || PSK_LOAD(psk_S.granted) == op->seq) && settle(op)) break;
        if (left() || (r = refusal())) break;
        if (PSK_UNLIKELY(op->locked->unreported) && now - from > YIELD_NS) report(op, (uint32_t)op->seq - 1); /* it was refused */
    }
    __atomic_fetch_add(&psk_S.cpu_wait_ns, psk_now_ns() - from, __ATOMIC_RELAXED);
    return r;
}

/* Has the stream wait for the newest ticket. */
static CUresult wait_for_ticket(psk_op *op) {
    if (!op->serial && !op->early && psk_memop_wait(op->stream, op->ptsz, psk_S.arrived, op->ticket)) {
        op->locked->queued++;
        return CUDA_SUCCESS;
    }
    uint64_t from = psk_now_ns();
    while (psk_S.arrived && !reached(PSK_LOAD(*psk_S.arrived), op->ticket) && !left()) {
        CUresult r = refusal();
        if (r) return r;
        pause_for(psk_now_ns() - from);
    }
    return CUDA_SUCCESS;
}

/* ---- the two steps ---- */

/* Without a record, as nobody reads the ring any more: what is absent, or cannot be told, must not run. */
static CUresult unrecorded(psk_op *op) {
    psk_record_dropped();
    return !left() && (op->asks || !settle(op)) ? refusal() : CUDA_SUCCESS;
}

IN_EVERY_LAUNCH bool reserve(psk_op *op) {
    uint64_t from = 0;
    while (PSK_UNLIKELY(!psk_record_reserve(op))) {
        if (left() || PSK_LOAD(psk_S.refuse)) return false;
        uint64_t now = psk_now_ns();
        if (!from) from = now;
        pause_for(now - from);
    }
    return true;
}

static CUresult issue_locked(psk_op *op) {
    psk_stream *s = op->locked;
    wait_for_queue(op);
    if (!reserve(op)) return unrecorded(op);
    if (PSK_UNLIKELY(op->asks)) __atomic_store_n(&psk_S.inspect_seq, op->seq, __ATOMIC_RELEASE);
    bool ready = settle(op) && !op->asks;
    if (PSK_UNLIKELY(!ready || op->arriving)) {
        op->flags |= PSK_FLAG_GATED;
        PSK_COUNT(psk_S.gated);
    }
    if (PSK_UNLIKELY(op->seq - s->last > LONG_AGO && s->nmarks)) forget_marks(op);
    uint32_t every = PSK_LOAD(psk_S.progress_every);
    if (every > PROGRESS_AT_MOST) every = PROGRESS_AT_MOST;
    if (++s->since_progress >= every || (op->flags & PSK_FLAG_GATED) || op->serial || s->alone) {
        op->flags |= PSK_FLAG_PROGRESS;
        s->since_progress = 0;
    }
    psk_record_publish(op);
    if (PSK_UNLIKELY(PSK_LOAD(psk_S.trails))) psk_trail_leave(op, &s->trail);
    CUresult r = CUDA_SUCCESS;
    if (PSK_UNLIKELY(!ready)) {
        r = report(op, (uint32_t)op->seq - 1);
        bool no_context = r == CUDA_ERROR_INVALID_CONTEXT || r == CUDA_ERROR_INVALID_HANDLE;
        if (!no_context || op->asks) r = wait_on_cpu(op); /* what is awaited may need the report */
    }
    if (PSK_UNLIKELY(op->flags & PSK_FLAG_INSPECT) && op->kind == PSK_REC_LAUNCH && r == CUDA_SUCCESS) __atomic_add_fetch(&psk_S.funcs[op->id].inspected, 1, __ATOMIC_RELAXED);
    if (PSK_UNLIKELY(op->arriving) && r == CUDA_SUCCESS) r = wait_for_ticket(op);
    s->queued++;
    s->last = op->seq;
    s->unreported = true;
    return r;
}

CUresult psk_strict_hold(psk_op *op) {
    op->kind = PSK_REC_STAY;
    op->settled = 0;
    op->arriving = false;
    op->stream_index = psk_stream_nowhere();
    op->locked = &psk_streams[op->stream_index];
    psk_stream_lock(op->locked);
    if (!reserve(op)) return unrecorded(op);
    if (op->asks) __atomic_store_n(&psk_S.inspect_seq, op->seq, __ATOMIC_RELEASE);
    psk_record_publish(op);
    return wait_on_cpu(op);
}

static void let_go(psk_op *op) {
    if (op->seq && psk_S.progress) __atomic_store_n(progress_word(op), (uint32_t)op->seq, __ATOMIC_RELEASE);
    psk_stream_unlock(op->locked);
}

CUresult psk_strict_issue(psk_op *op) {
    if (op->flags & PSK_FLAG_CAPTURED) { /* does not run now, so nothing is waited for, except for the ring */
        /* But the driver looks at what lies at the addresses of a copy when it makes a node of it (of a fill later: graph.c). */
        if (op->kind == PSK_REC_COPY && op->id != PSK_COPY_FILL && op->n) {
            op->flags = 0;
            return psk_strict_hold(op);
        }
        if (reserve(op))
            psk_record_publish(op);
        else
            psk_record_dropped();
        return CUDA_SUCCESS;
    }
    op->settled = 0;
    op->arriving = false;
    op->serial = op->unsure || op->stream_index == PSK_STREAM_SHARED || !psk_S.progress || !psk_S.arrived || !psk_have_memops();
    op->locked = &psk_streams[op->stream_index];
    if (PSK_UNLIKELY(op->flags & PSK_FLAG_OPAQUE) && !op->asks) {
        if (op->follows) return CUDA_ERROR_OUT_OF_MEMORY; /* no part is opaque, unless there was no memory to tell what it names */
        ask(op);
    }
    if (op->asks) PSK_COUNT(psk_S.grants_asked);
    if (PSK_LIKELY(!op->follows)) psk_stream_lock(op->locked);
    CUresult r = issue_locked(op);
    asked(op);
    /* A call that waits for the stream inside the driver holds its lock meanwhile. */
    if (PSK_UNLIKELY(op->waits) && r == CUDA_SUCCESS) {
        if (op->seq) /* what came before is finished */
            drain(op, (uint32_t)op->seq - 1);
        else
            psk_stream_synchronize(op->stream, op->ptsz);
    }
    return r;
}

CUresult psk_strict_stay(psk_op *op) {
    psk_strict_inspect(op);
    PSK_COUNT(psk_S.grants_asked);
    CUresult r = psk_strict_hold(op);
    asked(op);
    let_go(op);
    return r;
}

CUresult psk_strict_within(psk_op *op, psk_op *outer) {
    psk_stream *s = outer->locked;
    op->settled = 0;
    op->arriving = false;
    op->early = true;
    op->stream_index = outer->stream_index;
    op->locked = s;
    if (!reserve(op)) return unrecorded(op);
    bool ready = settle(op);
    if (!ready || op->arriving) {
        op->flags |= PSK_FLAG_GATED;
        outer->flags |= PSK_FLAG_PROGRESS;
        PSK_COUNT(psk_S.gated);
    }
    psk_record_publish(op);
    CUresult r = CUDA_SUCCESS;
    if (!ready) {
        r = report(outer, (uint32_t)outer->seq - 1); /* its call is under way: no more is finished */
        if (!r) r = wait_on_cpu(op);
    }
    if (op->arriving && !r) r = wait_for_ticket(op);
    s->last = op->seq; /* reported with the outer one */
    s->unreported = true;
    return r;
}

void psk_strict_done(psk_op *op) {
    if (!op->locked) return;
    if (op->kind == PSK_REC_STAY) {
        let_go(op);
        return;
    }
    /* Also when the call failed or was refused: the record is out, and the engine waits for its progress. */
    if (op->flags & PSK_FLAG_PROGRESS) report(op, (uint32_t)op->locked->last);
    if (PSK_UNLIKELY(op->more)) return;
    asked(op);
    psk_stream_unlock(op->locked);
}
