/* Strict mode: what is waited for, and what is not. The main thread plays the engine, a job launches. */
#include "strict.h"

enum { SLOTS = 40, PLAIN = 41 };
static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static uint32_t *held; /* a pinned word */

static void add_kernel(const char *name, stub_kernel_fn fn, unsigned n, const size_t *sizes) {
    ((void (*)(const char *, stub_kernel_fn, void *, unsigned, const size_t *))driver("stub_register_kernel"))(name, fn, NULL, n, sizes);
}
static void no_op(const stub_launch *l) { (void)l; }

static CUresult launch1(const char *name, CUstream s, void *value) {
    void *params[] = {value};
    return CALL(cuLaunchKernel, function(name), 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static uint32_t id_of(const char *name) {
    for (uint32_t i = S->nfuncs; i-- > 0;)
        if (!strcmp(func_name(i), name)) return i;
    CHECK(!"a function that was launched");
    return 0;
}

/* Everything resident: no wait, no write but every progress_every-th. */
static void resident(void) {
    CUstream s = new_stream();
    uint64_t writes = count("write_values"), waited = count("wait_values");
    for (int i = 1; i <= 8; i++) {
        OK(touch_add(s, at(1), 1, 0));
        CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1)->flags, i % 4 ? 0 : PSK_FLAG_PROGRESS);
    }
    SYNC(s);
    CHECK_EQ(count("write_values"), writes + 2);
    CHECK_EQ(count("wait_values"), waited);
    CHECK_EQ(S->cpu_waits, 0);
    S->progress_every = 1000; /* at least every 64th all the same: the run-ahead limit needs them */
    for (int i = 1; i <= 64; i++) {
        OK(touch_add(s, at(1), 1, 0));
        CHECK_EQ(must_take()->flags, i % 64 ? 0 : PSK_FLAG_PROGRESS);
    }
    S->progress_every = 4;
    SYNC(s);
}

/* An absent slot holds the thread, outside the driver, after its record is out and what came before is reported. */
static void absent(void) {
    CUstream s = new_stream();
    OK(touch_add(s, at(1), 1, 1));
    record *r = EXPECT(PSK_REC_LAUNCH, 1);
    CHECK_EQ(r->flags, 0);
    unsigned index = r->stream;
    set_state(2, PSK_SLOT_ABSENT);
    job j = {.call = add_one, .s = s, .p = at(2)};
    begin_job(&j);
    r = await();
    CHECK_EQ(r->n, 1);
    CHECK_EQ(r->slots[0], 2);
    CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    uint64_t seq = r->seq;
    CHECK_EQ(S->slot_last_seq[2], seq);
    EVENTUALLY(progress(index) == (uint32_t)seq - 1);
    SYNC(s);
    uint64_t launches = count("launches");
    waits(&j);
    CHECK_EQ(count("queued"), 0);
    /* Another stream is not held. */
    OK(touch_add(NULL, at(3), 1, 1));
    EXPECT(PSK_REC_LAUNCH, 3);
    SYNC(NULL);
    CHECK_EQ(count("launches"), launches + 1);
    set_state(2, PSK_SLOT_RESIDENT);
    OK(end_job(&j));
    SYNC(s);
    CHECK_EQ(word_at(at(2)), 1);
    CHECK_EQ(progress(index), (uint32_t)seq);
    CHECK_EQ(S->cpu_waits, 1);
    CHECK(S->cpu_wait_ns > 1000000);
    CHECK_EQ(S->gated, 1);
}

/* A thread may be cancelled, but not while it holds a stream: the next launch there would wait for ever. */
static void cancelled(void) {
    CUstream s = new_stream();
    uint32_t before = word_at(at(2));
    set_state(2, PSK_SLOT_ABSENT);
    job j = {.call = add_one, .s = s, .p = at(2)}, next = j;
    begin_job(&j);
    await();
    usleep(20000); /* it sleeps by now */
    CHECK(!pthread_cancel(j.thread));
    usleep(5000);
    set_state(2, PSK_SLOT_RESIDENT);
    pthread_join(j.thread, NULL);
    begin_job(&next);
    OK(end_job(&next));
    await();
    SYNC(s);
    CHECK_EQ(word_at(at(2)), before + 2);
}

/* Of several slots, all must be there. */
static void several(void) {
    set_state(4, PSK_SLOT_ABSENT);
    set_state(6, PSK_SLOT_ABSENT);
    add_kernel("four", no_op, 4, (const size_t[]){8, 8, 8, 8});
    uint64_t v[4] = {at(3), at(4), at(5), at(6)};
    void *params[] = {&v[0], &v[1], &v[2], &v[3]};
    set_mode(PSK_MODE_OBSERVE);
    OK(CALL(cuLaunchKernel, function("four"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    must_take();
    set_mode(PSK_MODE_STRICT);
    clear_function("four");
}
static CUresult launch_four(job *j) {
    uint64_t v[4] = {at(3), at(4), at(5), at(6)};
    void *params[] = {&v[0], &v[1], &v[2], &v[3]};
    return CALL(cuLaunchKernel, function("four"), 1, 1, 1, 1, 1, 1, 0, j->s, params, NULL);
}
static void all_of_them(void) {
    several();
    job j = {.call = launch_four};
    begin_job(&j);
    CHECK_EQ(await()->n, 4);
    set_state(6, PSK_SLOT_RESIDENT);
    waits(&j);
    set_state(4, PSK_SLOT_RESIDENT);
    OK(end_job(&j));
    SYNC(NULL);
}

/* An arriving slot holds the stream and not the thread, until the newest ticket is there. */
static void arriving(uint32_t from) {
    CUstream s = new_stream();
    arrive(from);
    uint64_t waited = count("wait_values"), cpu = S->cpu_waits;
    set_arriving(3, from);     /* there already */
    OK(touch_add(s, at(3), 1, 1));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 3)->flags, 0);
    CHECK_EQ(count("wait_values"), waited);
    set_arriving(4, from + 1);
    set_arriving(5, from + 3);
    set_arriving(6, from + 2);
    uint64_t launches = count("launches");
    job j = {.call = launch_four, .s = s};
    OK(launch_four(&j));
    record *r = EXPECT(PSK_REC_LAUNCH, 3, 4, 5, 6);
    CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    CHECK_EQ(count("wait_values"), waited + 1);
    arrive(from + 1);
    usleep(2000);
    arrive(from + 2);
    usleep(2000);
    CHECK(count("launches") <= launches + 1); /* the one before it */
    CHECK(progress(r->stream) != (uint32_t)r->seq);
    CHECK_EQ(CALL(cuStreamQuery, s), CUDA_ERROR_NOT_READY);
    arrive(from + 3);
    SYNC(s);
    CHECK_EQ(progress(r->stream), (uint32_t)r->seq);
    CHECK_EQ(S->cpu_waits, cpu);
    for (uint32_t i = 3; i <= 6; i++) set_state(i, PSK_SLOT_RESIDENT);
}

/* First absent, then arriving: both waits. */
static void absent_then_arriving(void) {
    CUstream s = new_stream();
    arrive(100);
    set_state(7, PSK_SLOT_ABSENT);
    uint32_t before = word_at(at(7));
    job j = {.call = add_one, .s = s, .p = at(7)};
    begin_job(&j);
    await();
    waits(&j);
    set_arriving(7, 101);
    OK(end_job(&j));
    CHECK_EQ(CALL(cuStreamQuery, s), CUDA_ERROR_NOT_READY);
    CHECK_EQ(word_at(at(7)), before);
    arrive(101);
    SYNC(s);
    CHECK_EQ(word_at(at(7)), before + 1);
    set_state(7, PSK_SLOT_RESIDENT);
}

/* The wait ends when the engine leaves strict mode. */
static void leaving(void) {
    set_state(8, PSK_SLOT_ABSENT);
    job j = {.call = add_one, .p = at(8)};
    begin_job(&j);
    await();
    waits(&j);
    set_mode(PSK_MODE_OFF);
    OK(end_job(&j));
    SYNC(NULL);
    set_mode(PSK_MODE_STRICT);
    set_state(8, PSK_SLOT_RESIDENT);
}

/* A failed engine: what needs it is refused and not run, what does not goes on. */
static void refusing(void) {
    CUstream s = new_stream();
    set_state(9, PSK_SLOT_ABSENT);
    uint64_t launches = count("launches"), refused = S->refused;
    job j = {.call = add_one, .s = s, .p = at(9)};
    begin_job(&j);
    record *r = await();
    unsigned index = r->stream;
    uint32_t seq = (uint32_t)r->seq;
    waits(&j);
    refuse(CUDA_ERROR_ILLEGAL_STATE);
    CHECK_EQ(end_job(&j), CUDA_ERROR_ILLEGAL_STATE); /* the one that waited */
    CHECK_EQ(touch_add(s, at(9), 1, 1), CUDA_ERROR_ILLEGAL_STATE);
    must_take();
    uint64_t v = at(1);
    CHECK_EQ(launch1("fresh", s, &v), CUDA_ERROR_ILLEGAL_STATE); /* asks */
    must_take();
    SYNC(s);
    EVENTUALLY((int32_t)(progress(index) - seq) >= 0); /* refused, and reported all the same */
    CHECK_EQ(count("launches"), launches);
    CHECK_EQ(S->refused, refused + 3);
    OK(touch_add(s, at(1), 1, 0));
    must_take();
    SYNC(s);
    CHECK_EQ(count("launches"), launches + 1);
    refuse(0);
    set_state(9, PSK_SLOT_RESIDENT);
}

/* A full ring is waited for; nothing is dropped. An engine that is gone does not hang the job. */
static CUresult fill_ring(job *j) {
    for (uint32_t i = 0; i < PSK_RING_ENTRIES + 10; i++) {
        CUresult r = CALL(cuLaunchKernel, function("empty"), 0, 1, 1, 1, 1, 1, 0, j->s, NULL, NULL); /* recorded, refused by the driver */
        if (r != CUDA_ERROR_INVALID_VALUE) return r;
    }
    return touch_add(j->s, at(10), 1, 1);
}
static void ring_full(void) {
    uint64_t tail = S->tail;
    S->progress_every = 64;
    for (int end = 0; end < 3; end++) {
        clear_function("empty");
        S->funcs[id_of("empty")].launches = 5000; /* the next power of 64 is far */
        set_state(10, end == 1 ? PSK_SLOT_ABSENT : PSK_SLOT_RESIDENT);
        job j = {.call = fill_ring, .s = new_stream()};
        begin_job(&j);
        EVENTUALLY(S->head == S->tail + PSK_RING_ENTRIES);
        waits(&j);
        static record r;
        if (end == 0) { /* the engine reads */
            uint64_t seq = tail;
            while (!atomic_load(&j.done))
                while (take(&r)) CHECK_EQ(r.seq, ++seq);
            OK(end_job(&j));
            CHECK_EQ(S->dropped, 0);
        } else if (end == 1) { /* it has failed: what is absent is refused */
            refuse(CUDA_ERROR_ILLEGAL_STATE);
            CHECK_EQ(end_job(&j), CUDA_ERROR_ILLEGAL_STATE);
            CHECK_EQ(S->dropped, 11);
            refuse(0);
        } else {
            set_mode(PSK_MODE_OFF);
            OK(end_job(&j));
            set_mode(PSK_MODE_STRICT);
        }
        SYNC(j.s);
        while (take(&r)) {
        }
    }
    S->dropped = 0;
    S->progress_every = 4;
    set_state(10, PSK_SLOT_RESIDENT);
}

/* A thread that runs ahead of the device waits here, not in the driver's full queue. */
enum { AHEAD = 3000 };
static CUresult run_ahead(job *j) {
    for (int i = 0; i < AHEAD; i++) {
        CUresult r = touch_add(j->s, j->p, 1, 1);
        if (r) return r;
    }
    return CUDA_SUCCESS;
}
static void ahead(uint32_t every) {
    clear_function("touch_add"); /* fewer than 4096 - 64 launches of it */
    S->progress_every = every;
    CUstream s = new_stream();
    hold(s, held);
    uint32_t before = word_at(at(11));
    job j = {.call = run_ahead, .s = s, .p = at(11)};
    begin_job(&j);
    EVENTUALLY(count("queued") >= PSK_MAX_UNFINISHED);
    waits(&j);
    CHECK(count("queued") <= PSK_MAX_UNFINISHED + 3); /* the wait that holds it, and the last one's launch and write */
    static record r;
    release(held);
    while (!atomic_load(&j.done)) {
        CHECK(count("queued") <= PSK_MAX_UNFINISHED + 3);
        take(&r);
    }
    OK(end_job(&j));
    SYNC(s);
    CHECK_EQ(word_at(at(11)), before + AHEAD);
    while (take(&r)) {
    }
    S->progress_every = 4;
}

/* Opaque operations wait for a grant, one at a time. */
static CUresult add_opaque(job *j) {
    uint64_t n = 1;
    uint32_t inc = 1;
    void *params[] = {&j->p, &n, &inc};
    return CALL(cuLaunchKernel, function("opaque_add"), 1, 1, 1, 1, 1, 1, 0, j->s, params, NULL);
}
static void grants(void) {
    uint64_t asked = S->grants_asked;
    uint32_t before = word_at(at(12));
    CUstream s = new_stream();
    OK(touch_add(s, at(1), 1, 0));
    unsigned index = must_take()->stream;
    job a = {.call = add_opaque, .s = s, .p = at(12)}, b = {.call = add_opaque, .p = at(13)};
    begin_job(&a);
    record *r = await();
    CHECK_EQ(r->flags, PSK_FLAG_OPAQUE | PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    CHECK_EQ(r->n, 0);
    uint64_t seq = r->seq;
    CHECK_EQ(S->inspect_seq, seq);
    CHECK_EQ(S->inspect_n, 0);
    EVENTUALLY(progress(index) == (uint32_t)seq - 1);
    begin_job(&b);
    waits(&a);
    waits(&b);
    none_left(); /* the second has not asked yet */
    grant(seq - 1); /* of no one */
    waits(&a);
    grant(seq);
    OK(end_job(&a));
    SYNC(s);
    CHECK_EQ(word_at(at(12)), before + 1);
    r = await();
    CHECK(r->seq > seq);
    CHECK_EQ(S->inspect_seq, r->seq);
    waits(&b);
    grant(r->seq);
    OK(end_job(&b));
    SYNC(NULL);
    CHECK_EQ(S->grants_asked, asked + 2);
}

/* What the main thread does for a job that launches much. */
static uint32_t serve(job *j, uint32_t *asked, uint32_t max, int every_state) {
    static record r;
    uint32_t n = 0, got = 0;
    do {
        while (take(&r)) {
            n++;
            if (!(r.flags & (PSK_FLAG_INSPECT | PSK_FLAG_OPAQUE))) continue;
            CHECK(r.flags & PSK_FLAG_INSPECT);
            CHECK_EQ(S->inspect_seq, r.seq);
            if (got < max) asked[got] = n;
            got++;
            if (every_state >= 0) __atomic_store_n(&S->funcs[r.id].inspect, (uint32_t)every_state, __ATOMIC_RELEASE);
            grant(r.seq);
        }
        sched_yield();
    } while (!atomic_load(&j->done) || __atomic_load_n(&S->head, __ATOMIC_ACQUIRE) != S->tail);
    return got;
}

static int launches_to_make;
static const char *kernel_to_launch;
static CUresult launch_many(job *j) {
    uint64_t v = j->p;
    for (int i = 0; i < launches_to_make; i++) {
        CUresult r = launch1(kernel_to_launch, j->s, &v);
        if (r) return r;
    }
    return CUDA_SUCCESS;
}

/* The first two launches of a function ask, and the powers of 64; one that is always inspected asks every time. */
static void schedule(void) {
    uint32_t asked[300];
    const struct {
        const char *name;
        int launches, state, n;
        uint32_t at[4];
    } cases[] = {
        {"new", 4100, -1, 4, {1, 2, 64, 4096}},
        {"cleared", 4100, PSK_INSPECT_CLEARED, 3, {1, 64, 4096}},
        {"always", 100, PSK_INSPECT_ALWAYS, 100, {1, 2, 3, 4}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        add_kernel(cases[i].name, no_op, 1, (const size_t[]){8});
        kernel_to_launch = cases[i].name;
        launches_to_make = cases[i].launches;
        job j = {.call = launch_many, .s = new_stream(), .p = at(14)};
        begin_job(&j);
        CHECK_EQ(serve(&j, asked, 300, cases[i].state), cases[i].n);
        OK(end_job(&j));
        for (int k = 0; k < cases[i].n && k < 4; k++) CHECK_EQ(asked[k], cases[i].at[k]);
        CHECK_EQ(S->funcs[id_of(cases[i].name)].launches, cases[i].launches);
    }
    /* Another mode counts nothing. */
    set_mode(PSK_MODE_OBSERVE);
    uint64_t v = at(14);
    OK(launch1("always", NULL, &v));
    must_take();
    set_mode(PSK_MODE_STRICT);
    CHECK_EQ(S->funcs[id_of("always")].launches, 100);
}

/* While the first launches of a function are searched, for as long as their streams are busy, no other goes without being searched. */
static void first_at_once(void) {
    enum { JOBS = 4 };
    add_kernel("at_once", no_op, 1, (const size_t[]){8});
    kernel_to_launch = "at_once";
    launches_to_make = 1;
    job j[JOBS];
    record *r = NULL;
    for (int i = 0; i < JOBS; i++) {
        j[i] = (job){.call = launch_many, .s = new_stream(), .p = at(14)};
        begin_job(&j[i]);
        if (i == 0) r = await(); /* the hook knows the function from now on */
    }
    for (int i = 0; i < JOBS; i++) {
        CHECK(r->flags & PSK_FLAG_INSPECT);
        usleep(20000);
        none_left(); /* before this one is granted */
        grant(r->seq);
        if (i + 1 < JOBS) r = await();
    }
    for (int i = 0; i < JOBS; i++) OK(end_job(&j[i]));
    job last = {.call = launch_many, .s = new_stream(), .p = at(14)};
    begin_job(&last);
    OK(end_job(&last));
    CHECK(!(must_take()->flags & PSK_FLAG_INSPECT));
}

/* The words of a launch's parameters that lie in published memory, slots and plain, and in other that the driver
 * knows; more than fit make it opaque. */
static uint64_t wide_words[PSK_MAX_INSPECT + 1];
static CUresult launch_wide(job *j) { return launch1("wide", j->s, wide_words); }
static void addresses(void) {
    add_kernel("wide", no_op, 1, (const size_t[]){sizeof wide_words});
    own(PSK_SLOT_PLAIN, at(PLAIN), 2 * MiB, 0);
    uint64_t *pinned;
    OK(CALL(cuMemHostAlloc, (void **)&pinned, U64(4096), U64(0)));
    uint64_t pageable = (uint64_t)(uintptr_t)wide_words, nothing = 0x123456789000;
    uint64_t given[] = {at(15) + 8, 5, at(PLAIN) + 12345, at(PLAIN + 1), ~0ull, pageable, (uint64_t)(uintptr_t)pinned + 40, nothing, at(15) + 8, at(16)};
    uint64_t noted[] = {at(15) + 8, at(PLAIN) + 12345, at(PLAIN + 1) /* not published, but memory */, (uint64_t)(uintptr_t)pinned + 40, at(15) + 8, at(16)};
    memcpy(wide_words, given, sizeof given);
    job j = {.call = launch_wide};
    begin_job(&j);
    record *r = await();
    CHECK_EQ(r->flags, PSK_FLAG_INSPECT | PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    CHECK_EQ(r->n, 2); /* plain memory is no slot */
    CHECK(r->slots[0] == 15 && r->slots[1] == 16);
    CHECK_EQ(S->inspect_n, sizeof noted / sizeof *noted);
    for (size_t i = 0; i < sizeof noted / sizeof *noted; i++) CHECK_EQ(S->inspect_addr[i], noted[i]);
    waits(&j);
    grant(r->seq);
    OK(end_job(&j));
    for (uint32_t n = PSK_MAX_INSPECT; n <= PSK_MAX_INSPECT + 1; n++) {
        S->funcs[r->id].inspect = PSK_INSPECT_ALWAYS;
        memset(wide_words, 0, sizeof wide_words);
        for (uint32_t i = 0; i < n; i++) wide_words[i] = at(15) + i;
        begin_job(&j);
        r = await();
        CHECK_EQ(!(r->flags & PSK_FLAG_OPAQUE), n == PSK_MAX_INSPECT);
        CHECK(r->flags & PSK_FLAG_INSPECT);
        CHECK_EQ(S->inspect_n, PSK_MAX_INSPECT);
        grant(r->seq);
        OK(end_job(&j));
    }
    SYNC(NULL);
    OK(CALL(cuMemFreeHost, pinned));
}

/* A grant does not replace the waits for what the parameters name. */
static void granted_and_absent(void) {
    S->funcs[id_of("always")].inspect = PSK_INSPECT_ALWAYS;
    kernel_to_launch = "always";
    launches_to_make = 1;
    set_state(17, PSK_SLOT_ABSENT);
    job j = {.call = launch_many, .p = at(17)};
    begin_job(&j);
    record *r = await();
    grant(r->seq);
    waits(&j);
    set_state(17, PSK_SLOT_RESIDENT);
    OK(end_job(&j));
    SYNC(NULL);
}

/* A launch on several devices is one opaque operation, and all its streams are done when it is reported. */
static CUresult launch_pair(job *j) {
    CUdeviceptr p[2] = {at(19), at(20)};
    uint64_t n = 1;
    uint32_t inc = 1;
    CUstream *s = j->host;
    void *params[2][3] = {{&p[0], &n, &inc}, {&p[1], &n, &inc}};
    CUDA_LAUNCH_PARAMS list[2];
    for (int i = 0; i < 2; i++) list[i] = (CUDA_LAUNCH_PARAMS){function("touch_add"), 1, 1, 1, 1, 1, 1, 0, s[i], params[i]};
    return CALL(cuLaunchCooperativeKernelMultiDevice, list, 2, 0);
}
static void multi_device(void) {
    clear_function("touch_add");
    CUstream s[2] = {new_stream(), new_stream()};
    job j = {.call = launch_pair, .host = s};
    set_state(20, PSK_SLOT_ABSENT);
    hold(s[1], held);
    begin_job(&j);
    record *r = await();
    CHECK_EQ(r->flags, PSK_FLAG_OPAQUE | PSK_FLAG_COOPERATIVE | PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    CHECK(r->n == 2 && r->slots[0] == 19 && r->slots[1] == 20);
    set_state(20, PSK_SLOT_RESIDENT);
    waits(&j);
    grant(r->seq);
    waits(&j); /* the second stream is not done */
    CHECK(progress(r->stream) != (uint32_t)r->seq);
    release(held);
    OK(end_job(&j));
    CHECK_EQ(word_at(at(19)), 1);
    CHECK_EQ(word_at(at(20)), 1);
    SYNC(s[0]);
    CHECK_EQ(progress(r->stream), (uint32_t)r->seq);
    none_left();
}

/* Streams beyond the table: one operation at a time, and reported from the CPU. */
static void shared_streams(void) {
    clear_function("touch_add");
    static CUstream streams[300];
    S->report_all();
    uint64_t launches = count("launches"), writes = count("write_values"), waited = count("wait_values");
    unsigned shared = 0;
    S->progress_every = 1000;
    arrive(7);
    for (int i = 0; i < 300; i++) {
        streams[i] = new_stream();
        OK(touch_add(streams[i], at(18), 1, 1));
        record *r = EXPECT(PSK_REC_LAUNCH, 18);
        if (r->stream != PSK_MAX_STREAMS - 1) {
            SYNC(streams[i]);
            continue;
        }
        shared++;
        CHECK_EQ(r->flags, PSK_FLAG_PROGRESS);
        CHECK_EQ(CALL(cuStreamQuery, streams[i]), CUDA_SUCCESS); /* done on return */
        CHECK_EQ(progress(PSK_MAX_STREAMS - 1), (uint32_t)r->seq);
    }
    CHECK(shared > 40 && shared < 200);
    CHECK_EQ(count("launches"), launches + 300);
    CHECK(count("write_values") <= writes + 300 - shared); /* the others, being quiet, at most once each */
    /* Absent and arriving memory is waited for on the CPU. */
    job j = {.call = add_one, .s = streams[299], .p = at(18)};
    set_state(18, PSK_SLOT_ABSENT);
    begin_job(&j);
    uint64_t seq = await()->seq;
    waits(&j);
    set_arriving(18, 8);
    waits(&j);
    arrive(8);
    OK(end_job(&j));
    CHECK_EQ(progress(PSK_MAX_STREAMS - 1), (uint32_t)seq);
    CHECK_EQ(count("wait_values"), waited);
    CHECK_EQ(word_at(at(18)), 301);
    set_state(18, PSK_SLOT_RESIDENT);
    for (int i = 0; i < 300; i++) OK(CALL(cuStreamDestroy_v2, streams[i]));
    S->progress_every = 4;
}

/* A driver that refuses stream waits: said once, and operations run one at a time. */
static void without_memops(void) {
    arrive(1);
    set_arriving(1, 2);
    job j = {.call = add_one, .p = at(1)};
    begin_job(&j);
    record *r = await();
    waits(&j);
    CHECK_EQ(word_at(at(1)), 0);
    arrive(2);
    OK(end_job(&j));
    EVENTUALLY(progress(r->stream) == (uint32_t)r->seq);
    set_state(1, PSK_SLOT_RESIDENT);
    for (uint32_t i = 2; i < 6; i++) {
        OK(touch_add(NULL, at(1), 1, 1));
        CHECK_EQ(word_at(at(1)), i); /* done on return */
        CHECK_EQ(progress(0), (uint32_t)must_take()->seq);
    }
}

/* What the driver refuses a thread without a context says nothing of other threads' calls, nor that the stream is idle. */
static void without_context(void) {
    CUstream s = new_stream();
    uint32_t before = word_at(at(1));
    hold(s, held);
    OK(touch_add(s, at(1), 1, 1));
    record *r = must_take();
    unsigned index = r->stream;
    uint32_t seq = (uint32_t)r->seq;
    OK(CALL(cuCtxSetCurrent, NULL));
    for (int i = 0; i < 4; i++) { /* a progress write after one of them */
        CHECK_EQ(touch_add(s, at(1), 1, 1), CUDA_ERROR_INVALID_CONTEXT);
        must_take();
    }
    set_state(2, PSK_SLOT_ABSENT);
    CHECK_EQ(touch_add(s, at(2), 1, 1), CUDA_ERROR_INVALID_CONTEXT); /* nor is it left waiting */
    must_take();
    set_state(2, PSK_SLOT_RESIDENT);
    CHECK((int32_t)(progress(index) - seq) < 0);
    OK(CALL(cuCtxSetCurrent, context));
    release(held);
    SYNC(s);
    CHECK_EQ(word_at(at(1)), before + 1);
    uint64_t writes = count("write_values");
    for (int i = 0; i < 4; i++) {
        OK(touch_add(s, at(1), 1, 1));
        seq = (uint32_t)must_take()->seq;
    }
    SYNC(s);
    CHECK(count("write_values") > writes && (int32_t)(progress(index) - seq) > -4);
}

int main(int argc, char **argv) {
    start();
    attach(PSK_MODE_OBSERVE);
    base = managed((SLOTS + 4) * 2 * MiB);
    OK(CALL(cuMemHostAlloc, &held, U64(64), 0));
    for (uint32_t i = 1; i <= SLOTS; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    add_kernel("fresh", no_op, 1, (const size_t[]){8});
    OK(touch_add(NULL, at(1), 1, 0));
    OK(CALL(cuLaunchKernel, function("empty"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    SYNC(NULL);
    must_take(), must_take();
    clear_function("touch_add");
    set_mode(PSK_MODE_STRICT);
    if (argc > 1 && !strcmp(argv[1], "refused")) {
        without_memops();
        return 0;
    }
    resident();
    absent();
    cancelled();
    all_of_them();
    arriving(50);
    clear_function("touch_add");
    arriving(UINT32_MAX - 1); /* tickets wrap */
    absent_then_arriving();
    leaving();
    refusing();
    ring_full();
    ahead(4);
    ahead(1); /* a write after each: commands count, not operations */
    ahead(1000);
    grants();
    schedule();
    first_at_once();
    addresses();
    granted_and_absent();
    multi_device();
    without_context();
    shared_streams();
    none_left();
    CHECK_EQ(S->dropped, 0);
    return 0;
}
