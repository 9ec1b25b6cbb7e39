/*
 * The front of an owner of memory, in C: what was just freed is given out again for
 * the next request of the same size and stream, without entering Go. The story,
 * the invariants and the order of locks are in doc.go.
 *
 * Everything here is for the threads of the job (cabi/exports.c), but for what
 * follows "the owner's side", which front.go calls.
 */
#ifndef PENSTOCK_FRONT_H
#define PENSTOCK_FRONT_H

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>

#include "script.h"

enum {
    FRONT_SHELVES = 4096, /* sizes, by stream; power of two */
    FRONT_NOTES = 1024,
    FRONT_BIRTHS = 16,
    FRONT_NONE = -1,
};

/* An allocation, live or held. Nodes are named by their index. */
struct front_node {
    uint64_t at;
    int32_t shelf;
    int32_t next;      /* with the same hash, or unused */
    int32_t next_held; /* on the shelf */
    int32_t held;
    int32_t apart; /* its owner alone gives it out, or has reserved it */
    int32_t reserved; /* for the request with that number, if it asks for so many bytes at most */
    uint64_t request;
    int64_t room;
    uint64_t note; /* the number of the last note about it */
    uint64_t born; /* by the clock of births; 0: it is not known */
};

/* What is held of one size for one stream. */
struct front_shelf {
    int64_t bytes;
    uint64_t stream;
    int32_t first; /* the last one held */
    int32_t next;  /* with the same hash */
    int32_t reserved; /* the one for the next request of those */
    uint64_t requests;
};

/* When memory was given out last. */
struct front_birth {
    uint64_t at;
    uint64_t when; /* by the clock of births */
};

/* A call that the owner has not seen; of a free the bytes are 0. */
struct front_note {
    uint64_t at;
    int64_t bytes;
    uint64_t stream;
    uint64_t when; /* by the clock */
    uint64_t requests; /* of that size and stream until then */
};

struct front {
    /* Set before anything is served. */
    const uint64_t *clock; /* what time a note has; NULL: none */
    int64_t unit;          /* sizes are told apart by so many bytes */
    int64_t least;         /* smallest request that is for this front */
    uint64_t base, end;    /* its owner's addresses, where no other has any */

    const uint64_t *birth_clock; /* atomic; what time a birth has; NULL: births are not noted */

    /* Written under the lock; also read without. */
    uint32_t lock;
    uint32_t epoch;      /* changes whenever what is live may not be all the pool's */
    int32_t device;      /* whose memory it is */
    uint32_t notes;      /* calls that the pool has not seen */
    int64_t most;        /* largest request served or held; 0: none */
    int64_t noted_above; /* requests above it are noted */
    int64_t live;        /* bytes that are allocated for the pool, held ones too; the pool writes it */
    int64_t held;        /* bytes held */
    int64_t held_count;
    int64_t reserved_count;
    int64_t served;      /* calls */
    int64_t live_peak;   /* of live without held, at calls served here */
    int64_t taken;       /* bytes given out here, less those held here, of all time */
    int64_t most_taken;  /* more than that must not be given out */

    /* Under the lock. */
    struct script script; /* what the owner foresees of larger requests than most */
    uint64_t noted; /* notes so far */
    struct front_node *nodes;
    int32_t *by_address; /* first node by hash */
    int32_t capacity;    /* of both; power of two */
    int32_t used;        /* nodes in use or unused by first_unused */
    int32_t first_unused;
    int32_t shelf_count;
    uint32_t births;     /* the next one's place, modulo */
    struct front_birth birth[FRONT_BIRTHS]; /* the newest, by the owner too */
    int32_t by_size[FRONT_SHELVES]; /* first shelf by hash */
    struct front_shelf shelves[FRONT_SHELVES];
    struct front_note note[FRONT_NOTES];
};

static inline void front_lock(struct front *f)
{
    for (int spins = 0; __atomic_exchange_n(&f->lock, 1, __ATOMIC_ACQUIRE); spins++)
        while (__atomic_load_n(&f->lock, __ATOMIC_RELAXED)) {
            if (++spins < 200)
                __builtin_ia32_pause();
            else
                sched_yield();
        }
}

static inline void front_unlock(struct front *f) { __atomic_store_n(&f->lock, 0, __ATOMIC_RELEASE); }

static inline uint32_t front_hash(uint64_t x) { return (uint32_t)((x * 0x9e3779b97f4a7c15ull) >> 32); }

static inline int32_t *front_bucket(struct front *f, uint64_t at) { return &f->by_address[front_hash(at >> 9) & (uint32_t)(f->capacity - 1)]; }

static inline struct front_node *front_find(struct front *f, uint64_t at)
{
    if (f->capacity == 0)
        return NULL;
    int32_t i = *front_bucket(f, at);
    while (i != FRONT_NONE && f->nodes[i].at != at)
        i = f->nodes[i].next;
    return i == FRONT_NONE ? NULL : &f->nodes[i];
}

static inline struct front_shelf *front_shelf_of(struct front *f, int64_t bytes, uint64_t stream, int make)
{
    int32_t *bucket = &f->by_size[front_hash((uint64_t)bytes ^ stream << 7) & (FRONT_SHELVES - 1)];
    for (int32_t i = *bucket - 1; i != FRONT_NONE; i = f->shelves[i].next)
        if (f->shelves[i].bytes == bytes && f->shelves[i].stream == stream)
            return &f->shelves[i];
    if (!make || f->shelf_count == FRONT_SHELVES)
        return NULL;
    struct front_shelf *s = &f->shelves[f->shelf_count++];
    *s = (struct front_shelf){bytes, stream, FRONT_NONE, *bucket - 1, FRONT_NONE, 0};
    *bucket = f->shelf_count; /* one more than its index: 0 is none */
    return s;
}

/* Makes room for one more node. */
static inline int front_grow(struct front *f)
{
    if (f->first_unused != FRONT_NONE || f->used < f->capacity)
        return 1;
    int32_t capacity = f->capacity ? 2 * f->capacity : 4096;
    struct front_node *nodes = (struct front_node *)realloc(f->nodes, sizeof *nodes * (size_t)capacity);
    if (nodes)
        f->nodes = nodes;
    int32_t *heads = (int32_t *)realloc(f->by_address, sizeof *heads * (size_t)capacity);
    if (heads)
        f->by_address = heads;
    if (!nodes || !heads)
        return 0; /* the tables that are there still hold */
    f->capacity = capacity;
    for (int32_t i = 0; i < capacity; i++)
        heads[i] = FRONT_NONE;
    for (int32_t i = 0; i < f->used; i++) { /* all are in use: none was unused */
        int32_t *bucket = front_bucket(f, nodes[i].at);
        nodes[i].next = *bucket;
        *bucket = i;
    }
    return 1;
}

static inline void front_remove(struct front *f, struct front_node *n)
{
    int32_t i = (int32_t)(n - f->nodes), *link = front_bucket(f, n->at);
    while (*link != i)
        link = &f->nodes[*link].next;
    *link = n->next;
    n->next = f->first_unused;
    f->first_unused = i;
}

/* Whether there is room for a note. */
static inline int front_can_note(struct front *f, int64_t bytes) { return bytes <= f->noted_above || f->notes < FRONT_NOTES; }

static inline void front_write(struct front *f, struct front_node *n, int64_t bytes, uint64_t stream, int64_t size)
{
    if (size > f->noted_above) {
        uint64_t when = f->clock ? __atomic_load_n(f->clock, __ATOMIC_SEQ_CST) : 0;
        f->note[f->notes] = (struct front_note){n->at, bytes, stream, when, f->shelves[n->shelf].requests};
        n->note = ++f->noted;
        __atomic_store_n(&f->notes, f->notes + 1, __ATOMIC_RELEASE);
    }
}

/* Notes that memory is about to be given out; n is its node, if it has one. */
static inline void front_born(struct front *f, struct front_node *n, uint64_t at)
{
    const uint64_t *clock = __atomic_load_n(&f->birth_clock, __ATOMIC_ACQUIRE);
    if (!clock)
        return;
    uint64_t now = __atomic_load_n(clock, __ATOMIC_SEQ_CST);
    f->birth[f->births++ % FRONT_BIRTHS] = (struct front_birth){at, now};
    if (n)
        n->born = now + 1;
}

static inline int64_t front_size(const struct front *f, int64_t bytes) { return (bytes + f->unit - 1) / f->unit * f->unit; }

/* What is reserved for the request of a shelf with that number, or NULL; what was for one before it has missed it. */
static inline struct front_node *front_due(struct front *f, struct front_shelf *s, uint64_t number)
{
    while (s->reserved != FRONT_NONE && f->nodes[s->reserved].request <= number) {
        struct front_node *n = &f->nodes[s->reserved];
        s->reserved = n->next_held;
        if (n->request == number)
            return n;
    }
    return NULL;
}

/* Gives out what is reserved for this very request, if it fits. */
static inline uint64_t front_give(struct front *f, struct front_node *n, int64_t bytes, uint64_t stream, int64_t size)
{
    if (bytes > n->room || !front_can_note(f, bytes))
        return 0;
    n->held = n->reserved = 0;
    f->reserved_count--;
    f->served++;
    front_write(f, n, bytes, stream, size);
    front_born(f, n, n->at);
    return n->at;
}

/* Counts bytes as given out, of what is held; under the lock. */
static inline void front_given(struct front *f, int64_t bytes)
{
    int64_t live = __atomic_load_n(&f->live, __ATOMIC_RELAXED) - __atomic_sub_fetch(&f->held, bytes, __ATOMIC_RELAXED);
    if (live > f->live_peak)
        __atomic_store_n(&f->live_peak, live, __ATOMIC_RELAXED);
}

/* Memory for a request that is the next one of the script, or 0. */
static inline uint64_t front_follow(struct front *f, int64_t bytes, uint64_t stream)
{
    uint64_t at = 0;
    front_lock(f);
    if (f->script.on && (at = script_request(&f->script, bytes, stream)))
        front_given(f, bytes);
    front_unlock(f);
    return at;
}

/* Frees what the script has given out, or what lay there when it began; 0: it is for the owner to free. */
static inline int front_follow_free(struct front *f, uint64_t at)
{
    int64_t bytes = 0;
    front_lock(f);
    if (script_covers(&f->script, at) && (bytes = script_free(&f->script, at)))
        __atomic_fetch_add(&f->held, bytes, __ATOMIC_RELAXED);
    front_unlock(f);
    return bytes != 0;
}

/* Memory that is held for such a request, or 0: then ask the owner, and front_add
 * what it gives with the epoch. */
static inline uint64_t front_take(struct front *f, int64_t bytes, int device, uint64_t stream, uint32_t *epoch)
{
    *epoch = __atomic_load_n(&f->epoch, __ATOMIC_ACQUIRE);
    if (device != f->device)
        return 0;
    if (bytes > __atomic_load_n(&f->most, __ATOMIC_RELAXED))
        return __atomic_load_n(&f->script.on, __ATOMIC_ACQUIRE) ? front_follow(f, bytes, stream) : 0;
    uint64_t at = 0;
    int64_t size = front_size(f, bytes);
    front_lock(f);
    struct front_shelf *s = bytes <= f->most ? front_shelf_of(f, size, stream, 0) : NULL;
    uint64_t number = s ? s->requests++ : 0;
    struct front_node *due = s ? front_due(f, s, number) : NULL;
    if (due)
        at = front_give(f, due, bytes, stream, size);
    else if (s && s->first != FRONT_NONE && f->taken + size <= __atomic_load_n(&f->most_taken, __ATOMIC_RELAXED) && front_can_note(f, bytes)) {
        struct front_node *n = &f->nodes[s->first];
        s->first = n->next_held;
        n->held = 0;
        at = n->at;
        front_write(f, n, bytes, stream, size);
        front_born(f, n, at);
        f->served++;
        f->held_count--;
        f->taken += size;
        front_given(f, size);
    }
    front_unlock(f);
    return at;
}

/* A node for an allocation that the owner has made since an epoch; NULL when it is not served here. */
static inline struct front_node *front_new_node(struct front *f, uint64_t at, int64_t bytes, uint64_t stream, uint32_t epoch)
{
    struct front_shelf *s = epoch == f->epoch && bytes <= f->most && front_grow(f) ? front_shelf_of(f, front_size(f, bytes), stream, 1) : NULL;
    if (!s)
        return NULL;
    int32_t i = f->first_unused;
    if (i != FRONT_NONE)
        f->first_unused = f->nodes[i].next;
    else
        i = f->used++;
    int32_t *bucket = front_bucket(f, at);
    f->nodes[i] = (struct front_node){.at = at, .shelf = (int32_t)(s - f->shelves), .next = *bucket, .next_held = FRONT_NONE};
    *bucket = i;
    return &f->nodes[i];
}

/* Puts an allocation on its shelf. */
static inline void front_shelve(struct front *f, struct front_node *n)
{
    struct front_shelf *s = &f->shelves[n->shelf];
    n->next_held = s->first;
    n->held = 1;
    s->first = (int32_t)(n - f->nodes);
    f->held_count++;
    __atomic_fetch_add(&f->held, s->bytes, __ATOMIC_RELAXED);
}

/* Tells the front of an allocation that the owner has made. */
static inline void front_add(struct front *f, uint64_t at, int64_t bytes, uint64_t stream, uint32_t epoch)
{
    if (bytes > __atomic_load_n(&f->most, __ATOMIC_RELAXED) && !__atomic_load_n(&f->birth_clock, __ATOMIC_ACQUIRE))
        return;
    front_lock(f);
    struct front_node *n = front_find(f, at);
    if (!n) /* else the owner has set it apart */
        n = front_new_node(f, at, bytes, stream, epoch);
    front_born(f, n, at);
    front_unlock(f);
}

enum front_freed { FRONT_PASS, FRONT_HELD, FRONT_NOT_LIVE };

/* Holds memory that is freed. FRONT_PASS: it is for the owner to free. */
static inline enum front_freed front_hold(struct front *f, uint64_t at)
{
    if (script_covers(&f->script, at))
        return front_follow_free(f, at) ? FRONT_HELD : FRONT_PASS;
    enum front_freed how = FRONT_PASS;
    front_lock(f);
    struct front_node *n = front_find(f, at);
    if (n && n->held)
        how = FRONT_NOT_LIVE;
    else if (n) {
        struct front_shelf *s = &f->shelves[n->shelf];
        if (s->bytes <= f->most && front_can_note(f, s->bytes)) {
            front_write(f, n, 0, 0, s->bytes);
            how = FRONT_HELD;
            if (!n->apart) {
                front_shelve(f, n);
                f->taken -= s->bytes;
            }
        }
        if (how == FRONT_PASS || n->apart)
            front_remove(f, n);
    }
    front_unlock(f);
    return how;
}

/* Another stream uses an allocation: the owner will have to free it. Says whether it
 * is to be told; not of what is held, which is in use by nobody. */
static inline int front_forget(struct front *f, uint64_t at)
{
    if (script_covers(&f->script, at))
        return 1;
    front_lock(f);
    struct front_node *n = front_find(f, at);
    int live = !n || !n->held;
    if (n && live)
        front_remove(f, n);
    front_unlock(f);
    return live;
}

/* ---- the owner's side ---- */

/* From now on serves requests up to most, of a device, and notes those above
 * noted_above. New is set when some allocations from here on are not the owner's, or
 * again are: what is under way then is not added. */
static inline void front_serve(struct front *f, int32_t device, int64_t most, int64_t noted_above, int new_epoch)
{
    front_lock(f);
    f->device = device;
    __atomic_store_n(&f->most, most, __ATOMIC_RELAXED);
    f->noted_above = noted_above;
    if (new_epoch)
        __atomic_store_n(&f->epoch, f->epoch + 1, __ATOMIC_RELEASE);
    front_unlock(f);
}

/* Takes over a script: its addresses, stream, unit of bytes, and first step that is repeated, and its steps as script_load has them. */
static inline int front_script_load(struct front *f, uint64_t base, uint64_t end, uint64_t stream, int64_t unit, int32_t start, int32_t count, const int64_t *bytes, const uint64_t *at,
                                    const uint32_t *first, const uint32_t *others)
{
    struct script *s = &f->script;
    front_lock(f);
    s->base = base, s->end = end, s->stream = stream, s->unit = unit, s->start = start;
    int loaded = script_load(s, count, bytes, at, first, others);
    front_unlock(f);
    return loaded;
}

/* Has the script followed that was loaded, from a step on. */
static inline void front_script_begin(struct front *f, int32_t next, int64_t most_turns, const int64_t *live)
{
    front_lock(f);
    script_begin(&f->script, next, most_turns, live);
    front_unlock(f);
}

/* Ends that. What it gave out and took counts as held, with its sign, until the owner has it on its account. */
static inline int front_script_end(struct front *f, int64_t *live)
{
    struct script *s = &f->script;
    front_lock(f);
    int on = s->on;
    __atomic_store_n(&s->on, 0, __ATOMIC_RELEASE);
    for (int32_t i = 0; on && i < s->count; i++)
        live[i] = s->used[i] ? s->live[i] : 0;
    front_unlock(f);
    return on;
}

/* Hands back what is held of sizes above one limit and up to another: at most n addresses, and
 * their bytes in all. Those bytes count as held until the pool says that they are free. */
static inline int32_t front_empty(struct front *f, int64_t above, int64_t to, uint64_t *at, int32_t n, int64_t *bytes)
{
    int32_t k = 0;
    *bytes = 0;
    front_lock(f);
    for (int32_t i = 0; i < f->shelf_count && k < n; i++) {
        struct front_shelf *s = &f->shelves[i];
        while (s->bytes > above && s->bytes <= to && s->first != FRONT_NONE && k < n) {
            struct front_node *x = &f->nodes[s->first];
            s->first = x->next_held;
            at[k++] = x->at;
            *bytes += s->bytes;
            f->held_count--;
            front_remove(f, x);
        }
    }
    if (k < n && f->held_count == 0 && f->reserved_count == 0 && f->shelf_count > FRONT_SHELVES / 4 * 3) {
        /* Sizes that vary have filled the shelves. Nothing is held: begin anew, without those live now. */
        for (int32_t i = 0; i < FRONT_SHELVES; i++)
            f->by_size[i] = 0;
        for (int32_t i = 0; i < f->capacity; i++)
            f->by_address[i] = FRONT_NONE;
        f->shelf_count = f->used = 0;
        f->first_unused = FRONT_NONE;
    }
    front_unlock(f);
    return k;
}

/* Lists what is held, at most n addresses, and says how many there are. */
static inline int64_t front_list(struct front *f, uint64_t *at, int64_t n)
{
    int64_t k = 0;
    front_lock(f);
    for (int32_t i = 0; i < f->shelf_count; i++)
        for (int32_t x = f->shelves[i].first; x != FRONT_NONE; x = f->nodes[x].next_held, k++)
            if (k < n)
                at[k] = f->nodes[x].at;
    front_unlock(f);
    return k;
}

/* Holds memory that its owner offers: as if it had been allocated, and freed. */
static inline int front_offer(struct front *f, uint64_t at, int64_t bytes, uint64_t stream)
{
    front_lock(f);
    struct front_node *n = front_new_node(f, at, bytes, stream, f->epoch);
    if (n)
        front_shelve(f, n);
    front_unlock(f);
    return n != NULL;
}

/* Notes an allocation that the owner is about to give out and that is not to be held: its free is
 * noted, no more. */
static inline int front_set_apart(struct front *f, uint64_t at, int64_t bytes, uint64_t stream)
{
    front_lock(f);
    struct front_node *n = front_new_node(f, at, bytes, stream, f->epoch);
    if (n)
        n->apart = 1;
    front_unlock(f);
    return n != NULL;
}

/* How many requests of a size and stream have come since there is a shelf for them. */
static inline uint64_t front_requests(struct front *f, int64_t bytes, uint64_t stream)
{
    front_lock(f);
    struct front_shelf *s = front_shelf_of(f, front_size(f, bytes), stream, 0);
    uint64_t n = s ? s->requests : 0;
    front_unlock(f);
    return n;
}

/* Reserves memory of the owner's for the request of that number of a size and stream, if it asks for room bytes at
 * most: that is then given out, and noted, and so is its free, after which it is not held. 0 when it has come. */
static inline int front_reserve(struct front *f, uint64_t at, int64_t room, int64_t bytes, uint64_t stream, uint64_t request)
{
    front_lock(f);
    struct front_shelf *s = front_shelf_of(f, front_size(f, bytes), stream, 1);
    struct front_node *n = s && request >= s->requests ? front_new_node(f, at, bytes, stream, f->epoch) : NULL;
    if (n) {
        n->held = n->apart = n->reserved = 1;
        n->request = request;
        n->room = room;
        int32_t *link = &s->reserved;
        while (*link != FRONT_NONE && f->nodes[*link].request < request)
            link = &f->nodes[*link].next_held;
        n->next_held = *link;
        *link = (int32_t)(n - f->nodes);
        f->reserved_count++;
    }
    front_unlock(f);
    return n != NULL;
}

/* Takes one allocation back that is reserved, or held since a note that the owner has seen. */
static inline int front_recall(struct front *f, uint64_t at, uint64_t seen)
{
    front_lock(f);
    struct front_node *n = front_find(f, at);
    int held = n && n->held && n->note <= seen;
    if (held) {
        struct front_shelf *s = &f->shelves[n->shelf];
        int32_t i = (int32_t)(n - f->nodes), *link = n->reserved ? &s->reserved : &s->first;
        while (*link != i && *link != FRONT_NONE) /* a reserved one may have missed its request */
            link = &f->nodes[*link].next_held;
        if (*link == i)
            *link = n->next_held;
        if (n->reserved)
            f->reserved_count--;
        else {
            f->held_count--;
            __atomic_sub_fetch(&f->held, s->bytes, __ATOMIC_RELAXED);
        }
        front_remove(f, n);
    }
    front_unlock(f);
    return held;
}

/* When a live allocation, or one of the newest few, was given out: 1, or 0 when it is not known. */
static inline int front_born_at(struct front *f, uint64_t at, uint64_t *when)
{
    front_lock(f);
    struct front_node *n = front_find(f, at);
    int known = n && !n->held && n->born;
    if (known)
        *when = n->born - 1;
    for (uint32_t i = 1; i <= FRONT_BIRTHS && i <= f->births && !known; i++) {
        struct front_birth *b = &f->birth[(f->births - i) % FRONT_BIRTHS];
        known = b->at == at;
        *when = b->when;
    }
    front_unlock(f);
    return known;
}

/* Hands over the notes, in order. */
static inline uint32_t front_read(struct front *f, struct front_note *out)
{
    front_lock(f);
    uint32_t n = f->notes;
    for (uint32_t i = 0; i < n; i++)
        out[i] = f->note[i];
    __atomic_store_n(&f->notes, 0, __ATOMIC_RELEASE);
    front_unlock(f);
    return n;
}

static inline void front_reset_peak(struct front *f)
{
    front_lock(f);
    __atomic_store_n(&f->live_peak, __atomic_load_n(&f->live, __ATOMIC_RELAXED) - __atomic_load_n(&f->held, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    front_unlock(f);
}

static inline struct front *front_new(void)
{
    struct front *f = (struct front *)calloc(1, sizeof *f);
    if (f) {
        f->first_unused = FRONT_NONE;
        f->unit = 1;
        f->most_taken = INT64_MAX;
        f->least = INT64_MAX; /* of one that stands nowhere */
    }
    return f;
}

#endif
