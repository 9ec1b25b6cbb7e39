/*
 * A script: requests that come again in the same order, each with a place of its own, as a plan has them.
 * It is followed as long as each request is the next one and finds nothing that lies where it is to lie;
 * frees may come in any order. Nothing here knows of the front or its lock, under which all of this is called.
 */
#ifndef PENSTOCK_FRONT_SCRIPT_H
#define PENSTOCK_FRONT_SCRIPT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SCRIPT_NOTHING = -1 };

struct script_step {
    int64_t bytes;          /* in whole units; negative: it has no place */
    int32_t place;
    uint32_t first, behind; /* in others: the steps that lie where this one does, too */
};

/* Where steps begin. */
struct script_place {
    uint64_t at;
    int32_t step; /* whose allocation lies here, or SCRIPT_NOTHING */
};

struct script {
    int32_t on; /* atomic: it is followed */
    uint64_t base, end;
    uint64_t stream;
    int64_t unit;
    int32_t count, start, next; /* steps; the first that is repeated; the one that is to come */
    int64_t most_turns;         /* after which the owner is asked again */
    struct script_step *steps;
    uint8_t *used;   /* by step: its allocation is live */
    int64_t *live;   /* by step: what was asked for */
    uint32_t *others;
    struct script_place *places;
    int32_t *by_address; /* hash table of places */
    uint32_t mask;
    int32_t place_count;
    int64_t served, freed, grown; /* since it began: requests, frees, and live bytes over those then; atomic for who looks without the lock */
    int64_t served_bytes, turns;
};

static inline int32_t *script_bucket(struct script *s, uint64_t at)
{
    uint32_t i = (uint32_t)((at >> 9) * 0x9e3779b97f4a7c15ull >> 32) & s->mask;
    while (s->by_address[i] != SCRIPT_NOTHING && s->places[s->by_address[i]].at != at)
        i = (i + 1) & s->mask;
    return &s->by_address[i];
}

static inline void script_clear(struct script *s)
{
    __atomic_store_n(&s->on, 0, __ATOMIC_RELEASE);
    free(s->steps), free(s->used), free(s->live), free(s->others), free(s->places), free(s->by_address);
    s->steps = NULL, s->used = NULL, s->live = NULL, s->others = NULL, s->places = NULL, s->by_address = NULL;
    s->count = 0;
}

/* Takes over the steps: of each its bytes and where it lies, and first[count + 1], where its others begin. 0 without memory. */
static inline int script_load(struct script *s, int32_t count, const int64_t *bytes, const uint64_t *at, const uint32_t *first, const uint32_t *others)
{
    script_clear(s);
    for (s->mask = 15; s->mask < 2 * (uint32_t)count; s->mask = 2 * s->mask + 1) {
    }
    size_t n = (size_t)count, slots = (size_t)s->mask + 1, all = first[count];
    s->steps = (struct script_step *)malloc(n * sizeof *s->steps);
    s->used = (uint8_t *)malloc(n);
    s->live = (int64_t *)malloc(n * sizeof *s->live);
    s->others = (uint32_t *)malloc((all + 1) * sizeof *s->others);
    s->places = (struct script_place *)malloc(n * sizeof *s->places);
    s->by_address = (int32_t *)malloc(slots * sizeof *s->by_address);
    if (!s->steps || !s->used || !s->live || !s->others || !s->places || !s->by_address) {
        script_clear(s);
        return 0;
    }
    memcpy(s->others, others, all * sizeof *s->others);
    memset(s->by_address, 0xff, slots * sizeof *s->by_address);
    s->place_count = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t *bucket = script_bucket(s, at[i]);
        if (*bucket == SCRIPT_NOTHING) {
            s->places[s->place_count] = (struct script_place){at[i], SCRIPT_NOTHING};
            *bucket = s->place_count++;
        }
        s->steps[i] = (struct script_step){bytes[i], *bucket, first[i], first[i + 1]};
    }
    s->count = count;
    return 1;
}

/* Begins at a step, for so many turns at most. live has of each step what was asked for if its allocation is live, else 0. */
static inline void script_begin(struct script *s, int32_t next, int64_t most_turns, const int64_t *live)
{
    for (int32_t i = 0; i < s->place_count; i++)
        s->places[i].step = SCRIPT_NOTHING;
    for (int32_t i = 0; i < s->count; i++) {
        s->live[i] = live[i];
        if ((s->used[i] = live[i] > 0))
            s->places[s->steps[i].place].step = i;
    }
    s->next = next, s->most_turns = most_turns;
    s->served = s->freed = s->turns = s->served_bytes = s->grown = 0;
    __atomic_store_n(&s->on, 1, __ATOMIC_RELEASE);
}

/* The place of the next step, if a request is that and nothing lies there; else 0. */
static inline uint64_t script_request(struct script *s, int64_t bytes, uint64_t stream)
{
    const struct script_step *x = &s->steps[s->next];
    if (s->turns == s->most_turns || stream != s->stream || (bytes + s->unit - 1) / s->unit * s->unit != x->bytes || s->used[s->next])
        return 0;
    for (uint32_t k = x->first; k < x->behind; k++)
        if (s->used[s->others[k]])
            return 0;
    s->used[s->next] = 1;
    s->live[s->next] = bytes;
    s->places[x->place].step = s->next;
    __atomic_store_n(&s->grown, s->grown + bytes, __ATOMIC_RELAXED);
    s->served_bytes += bytes;
    __atomic_store_n(&s->served, s->served + 1, __ATOMIC_RELAXED);
    if (++s->next == s->count) {
        s->next = s->start;
        s->turns++;
    }
    return s->places[x->place].at;
}

/* The bytes of the allocation at an address, which is live no more; 0 when there is none. */
static inline int64_t script_free(struct script *s, uint64_t at)
{
    int32_t place = *script_bucket(s, at), step = place == SCRIPT_NOTHING ? SCRIPT_NOTHING : s->places[place].step;
    if (step == SCRIPT_NOTHING)
        return 0;
    s->places[place].step = SCRIPT_NOTHING;
    s->used[step] = 0;
    __atomic_store_n(&s->grown, s->grown - s->live[step], __ATOMIC_RELAXED);
    __atomic_store_n(&s->freed, s->freed + 1, __ATOMIC_RELAXED);
    return s->live[step];
}

static inline int script_covers(struct script *s, uint64_t at)
{
    return __atomic_load_n(&s->on, __ATOMIC_ACQUIRE) && at >= s->base && at < s->end;
}

#endif
