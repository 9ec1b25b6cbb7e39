/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * As much of nvidia-uvm as kmod-patch uses, in user space: address spaces of
 * ranges of blocks of pages, that know where each page is, and locks that know
 * whether they are held. It is what the patch is run against without a GPU.
 */
#ifndef FAKEUVM_H
#define FAKEUVM_H

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t NvU64;
typedef uint32_t NvU32;
typedef uint32_t NV_STATUS;
typedef struct { uint8_t uuid[16]; } NvProcessorUuid;

enum {
	NV_OK = 0, NV_ERR_ILLEGAL_ACTION = 0x16, NV_ERR_INVALID_ADDRESS = 0x1e, NV_ERR_INVALID_ARGUMENT = 0x1f,
	NV_ERR_INVALID_DEVICE = 0x26, NV_ERR_NO_MEMORY = 0x51, NV_ERR_MORE_PROCESSING_REQUIRED = 0x4d,
};

#define PAGE_SIZE 4096ULL
#define PAGES 512
#define NUMA_NO_NODE (-1)
#define UVM_CHUNK_SIZE_MAX (PAGES * PAGE_SIZE)
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))

struct list_head { struct list_head *next, *prev; };

static inline void list_init(struct list_head *l) { l->next = l->prev = l; }
static inline bool list_empty(const struct list_head *l) { return l->next == l; }
static inline void list_put(struct list_head *l, struct list_head *prev)
{
	l->prev = prev;
	l->next = prev->next;
	prev->next->prev = l;
	prev->next = l;
}
static inline void list_move(struct list_head *l, struct list_head *head)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	list_put(l, head);
}

/* Locks that must be taken in order, and are counted. */
typedef struct { int held; } lock_t;
static inline void take(lock_t *l) { assert(!l->held); l->held = 1; }
static inline void give(lock_t *l) { assert(l->held); l->held = 0; }
#define uvm_mutex_lock take
#define uvm_mutex_unlock give
#define uvm_spin_lock take
#define uvm_spin_unlock give

typedef struct { NvU32 val; } uvm_processor_id_t;
#define UVM_ID_CPU ((uvm_processor_id_t){ 0 })
#define UVM_ID_INVALID ((uvm_processor_id_t){ 99 })
typedef struct { NvU64 bits; } uvm_processor_mask_t;
static inline void uvm_processor_mask_zero(uvm_processor_mask_t *m) { m->bits = 0; }
static inline bool uvm_processor_mask_test(const uvm_processor_mask_t *m, uvm_processor_id_t id) { return m->bits >> id.val & 1; }
static inline void uvm_processor_mask_or(uvm_processor_mask_t *to, const uvm_processor_mask_t *a, const uvm_processor_mask_t *b) { to->bits = a->bits | b->bits; }
#define for_each_gpu_id_in_mask(id, mask) \
	for ((id).val = 1; (id).val < 9; (id).val++) if (uvm_processor_mask_test(mask, id))

/* Memory that must be given back, and may run out. */
static int allocated, fail_allocation;
static inline void *allocate(size_t bytes)
{
	if (fail_allocation && --fail_allocation == 0)
		return NULL;
	allocated++;
	return calloc(1, bytes);
}
static inline void release(void *p) { if (p) { allocated--; free(p); } }
static inline uvm_processor_mask_t *uvm_processor_mask_cache_alloc(void) { return allocate(sizeof(uvm_processor_mask_t)); }
#define uvm_processor_mask_cache_free release

typedef struct { bool page[PAGES]; } uvm_page_mask_t;
typedef struct { uint16_t first, outer; } uvm_va_block_region_t;
static inline void uvm_page_mask_zero(uvm_page_mask_t *m) { memset(m, 0, sizeof(*m)); }
static inline void uvm_page_mask_or(uvm_page_mask_t *to, const uvm_page_mask_t *a, const uvm_page_mask_t *b)
{
	for (int i = 0; i < PAGES; i++) to->page[i] = a->page[i] || b->page[i];
}
static inline void uvm_page_mask_region_clear_outside(uvm_page_mask_t *m, uvm_va_block_region_t r)
{
	for (int i = 0; i < PAGES; i++) m->page[i] = m->page[i] && i >= r.first && i < r.outer;
}
static inline NvU32 uvm_page_mask_weight(const uvm_page_mask_t *m)
{
	NvU32 n = 0;
	for (int i = 0; i < PAGES; i++) n += m->page[i];
	return n;
}

typedef struct { int pending; } uvm_tracker_t;
#define UVM_TRACKER_INIT() { 0 }
static inline NV_STATUS uvm_tracker_add_tracker_safe(uvm_tracker_t *to, const uvm_tracker_t *from) { to->pending += from->pending; return NV_OK; }

enum { UVM_PMM_GPU_CHUNK_STATE_ALLOCATED = 3, UVM_PMM_GPU_CHUNK_STATE_TEMP_PINNED = 4 };
typedef struct { struct list_head list; int state; bool in_eviction; NvU64 size; } uvm_gpu_chunk_t;
static inline NvU64 uvm_gpu_chunk_get_size(const uvm_gpu_chunk_t *c) { return c->size; }
enum { UVM_PMM_ALLOC_LIST_USED, UVM_PMM_ALLOC_LIST_COUNT };
typedef struct {
	lock_t list_lock;
	struct {
#ifdef UVM_PENSTOCK_ALLOC_LIST
		struct list_head alloc_list[UVM_PMM_ALLOC_LIST_COUNT];
#else
		struct list_head va_block_used;
#endif
	} root_chunks;
} uvm_pmm_gpu_t;
#ifdef UVM_PENSTOCK_ALLOC_LIST
#define used_list(pmm) (&(pmm)->root_chunks.alloc_list[UVM_PMM_ALLOC_LIST_USED])
#else
#define used_list(pmm) (&(pmm)->root_chunks.va_block_used)
#endif
static inline void uvm_pmm_gpu_mark_root_chunk_used(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *c)
{
	take(&pmm->list_lock);
	list_move(&c->list, used_list(pmm)->prev);
	give(&pmm->list_lock);
}
typedef struct { bool faults; } uvm_parent_gpu_t;
typedef struct { uvm_processor_id_t id; uvm_parent_gpu_t *parent; uvm_pmm_gpu_t pmm; NvProcessorUuid uuid; } uvm_gpu_t;
#ifdef UVM_PENSTOCK_OLD_GPUS
static inline bool uvm_parent_gpu_supports_eviction(uvm_parent_gpu_t *p) { return p->faults; }
#endif

typedef struct {
	NvU64 start, end;
	lock_t lock;
	uvm_processor_mask_t resident;
	uvm_page_mask_t on[9]; /* by processor */
	uvm_tracker_t tracker;
	uvm_gpu_chunk_t *chunk;
} uvm_va_block_t;
typedef struct { int unused; } uvm_va_block_retry_t;
static inline NvU64 uvm_va_block_size(const uvm_va_block_t *b) { return b->end - b->start + 1; }
static inline uvm_page_mask_t *uvm_va_block_resident_mask_get(uvm_va_block_t *b, uvm_processor_id_t id, int nid) { (void)nid; return &b->on[id.val]; }
static inline uvm_va_block_region_t uvm_va_block_region_from_start_end(uvm_va_block_t *b, NvU64 from, NvU64 to)
{
	assert(from >= b->start && to <= b->end && from < to);
	return (uvm_va_block_region_t){ (from - b->start) / PAGE_SIZE, (to + 1 - b->start) / PAGE_SIZE };
}
static inline uvm_gpu_chunk_t *uvm_va_block_lookup_gpu_chunk(uvm_va_block_t *b, uvm_gpu_t *gpu, NvU64 at)
{
	assert(b->lock.held && at == b->start);
	(void)gpu;
	return b->chunk;
}
#define UVM_VA_BLOCK_LOCK_RETRY(block, retry, call) ({ \
	NV_STATUS status__; \
	(void)(retry); \
	take(&(block)->lock); \
	do status__ = (call); while (status__ == NV_ERR_MORE_PROCESSING_REQUIRED); \
	give(&(block)->lock); \
	status__; })

typedef struct { struct { NvU64 start, end; } node; } va_node_t;
typedef struct { va_node_t va_range; uvm_va_block_t **blocks; } uvm_va_range_managed_t;
static inline size_t uvm_va_range_block_index(uvm_va_range_managed_t *r, NvU64 at)
{
	return at / UVM_CHUNK_SIZE_MAX - r->va_range.node.start / UVM_CHUNK_SIZE_MAX;
}
static inline uvm_va_block_t *uvm_va_range_block(uvm_va_range_managed_t *r, size_t i) { return r->blocks[i]; }

struct mm_struct { lock_t lock; };
typedef struct {
	lock_t lock;
	struct mm_struct *mm;
	uvm_va_range_managed_t *ranges; /* in the order of their addresses */
	int count;
	bool pinned; /* not migratable */
	uvm_gpu_t *gpu;
} uvm_va_space_t;
struct file { uvm_va_space_t *space; };
static inline uvm_va_space_t *uvm_va_space_get(struct file *f) { assert(f->space); return f->space; }
static inline void uvm_va_space_down_read(uvm_va_space_t *s) { take(&s->lock); }
static inline void uvm_va_space_up_read(uvm_va_space_t *s) { give(&s->lock); }
static inline struct mm_struct *uvm_va_space_mm_or_current_retain_lock(uvm_va_space_t *s) { if (s->mm) take(&s->mm->lock); return s->mm; }
static inline void uvm_up_read_mmap_lock_out_of_order(struct mm_struct *mm) { give(&mm->lock); }
static inline void uvm_va_space_mm_or_current_release(uvm_va_space_t *s, struct mm_struct *mm) { (void)s; assert(!mm || !mm->lock.held); }
static inline uvm_gpu_t *uvm_va_space_get_gpu_by_uuid(uvm_va_space_t *s, const NvProcessorUuid *id)
{
	return s->gpu && !memcmp(&s->gpu->uuid, id, sizeof(*id)) ? s->gpu : NULL;
}
static inline bool uvm_range_group_all_migratable(uvm_va_space_t *s, NvU64 from, NvU64 to) { (void)from, (void)to; return !s->pinned; }
static inline uvm_va_range_managed_t *range_at(uvm_va_space_t *s, NvU64 at)
{
	assert(s->lock.held);
	for (int i = 0; i < s->count; i++)
		if (s->ranges[i].va_range.node.start <= at && at <= s->ranges[i].va_range.node.end)
			return &s->ranges[i];
	return NULL;
}
#define uvm_for_each_va_range_managed_in_contig(r, space, from, to) \
	for (r = range_at(space, from); r; r = r->va_range.node.end < (to) ? range_at(space, r->va_range.node.end + 1) : NULL)
static inline bool uvm_api_range_invalid(NvU64 base, NvU64 length)
{
	return base % PAGE_SIZE || length % PAGE_SIZE || length == 0 || base + length < base;
}

typedef struct {
	uvm_page_mask_t caller_page_mask;
	struct { int dest_nid; uvm_processor_mask_t all_involved_processors; } make_resident;
} uvm_va_block_context_t;
typedef struct { uvm_va_block_context_t *block_context; struct { uvm_processor_id_t residency; } prefetch_hint; } uvm_service_block_context_t;
static inline uvm_service_block_context_t *uvm_service_block_context_alloc(struct mm_struct *mm)
{
	uvm_service_block_context_t *c = allocate(sizeof(*c));

	(void)mm;
	if (c)
		c->block_context = calloc(1, sizeof(*c->block_context));
	return c;
}
static inline void uvm_service_block_context_free(uvm_service_block_context_t *c) { free(c->block_context); release(c); }

/* What make_resident was asked, and what it shall answer. */
static int moves, moves_before_failure = -1, retries;
static bool copying; /* copies are under way, until somebody waits */
static int links_retained, links_checked, flushed;
enum { UVM_MAKE_RESIDENT_CAUSE_API_MIGRATE = 6 };
static inline NV_STATUS uvm_va_block_make_resident(uvm_va_block_t *b, uvm_va_block_retry_t *retry, uvm_va_block_context_t *c,
	uvm_processor_id_t to, uvm_va_block_region_t region, const uvm_page_mask_t *pages, const uvm_page_mask_t *prefetch, int cause)
{
	assert(b->lock.held && retry && to.val == 0 && !prefetch && cause == UVM_MAKE_RESIDENT_CAUSE_API_MIGRATE);
	assert(c->make_resident.dest_nid == NUMA_NO_NODE);
	if (retries > 0) {
		retries--;
		return NV_ERR_MORE_PROCESSING_REQUIRED;
	}
	if (moves_before_failure >= 0 && moves_before_failure-- == 0)
		return NV_ERR_NO_MEMORY;
	moves++;
	for (int i = 0; i < PAGES; i++) {
		if (!pages->page[i])
			continue;
		assert(i >= region.first && i < region.outer);
		for (int p = 1; p < 9; p++)
			b->on[p].page[i] = false;
		b->on[0].page[i] = true;
	}
	c->make_resident.all_involved_processors.bits |= b->resident.bits;
	b->tracker.pending++;
	copying = true;
	return NV_OK;
}
static inline NV_STATUS uvm_tracker_wait_deinit(uvm_tracker_t *t) { if (t->pending) copying = false; return NV_OK; }
static inline void uvm_global_gpu_retain(const uvm_processor_mask_t *m) { (void)m; links_retained++; }
static inline void uvm_global_gpu_release(const uvm_processor_mask_t *m) { (void)m; links_retained--; }
static inline NV_STATUS uvm_global_gpu_check_nvlink_error(uvm_processor_mask_t *m) { assert(links_retained); links_checked += m->bits != 0; return NV_OK; }
static inline void uvm_tools_flush_events(void) { flushed++; }

/* Requests: the block is copied in and out, and one without an address space is refused where one is needed. */
#define route(cmd, params_t, function, needs_space) \
	case cmd: { \
		params_t params; \
		memcpy(&params, (void *)arg, sizeof(params)); \
		params.rmStatus = needs_space && !filp->space ? NV_ERR_ILLEGAL_ACTION : function(&params, filp); \
		memcpy((void *)arg, &params, sizeof(params)); \
		return 0; \
	}
#define UVM_ROUTE_CMD_STACK_INIT_CHECK(cmd, function) route(cmd, cmd##_PARAMS, function, true)
#define UVM_ROUTE_CMD_STACK_NO_INIT_CHECK(cmd, function) route(cmd, cmd##_PARAMS, function, false)
long uvm_test_ioctl(struct file *filp, unsigned int cmd, unsigned long arg);
long uvm_penstock_ioctl(struct file *filp, unsigned int cmd, unsigned long arg);

#endif
