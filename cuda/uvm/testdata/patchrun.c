/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Runs kmod-patch's requests against fakeuvm.h. Says "fine" or dies. */
#include "uvm_penstock.c"

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: not %s\n", __LINE__, #what); exit(1); } } while (0)

long uvm_test_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	(void)filp, (void)arg;
	return cmd == 243 ? 7 : -ENOSYS;
}

#define MIB (1ULL << 20)
static uvm_parent_gpu_t parent = { true };
static uvm_gpu_t gpu = { .id = { 1 }, .parent = &parent, .uuid = { { 0xab } } };
static uvm_gpu_chunk_t chunks[4];
static uvm_va_block_t blocks[4];
static struct mm_struct mm;
static uvm_va_space_t space = { .mm = &mm, .gpu = &gpu };
static struct file file = { &space }, empty;

/* Two ranges that touch, 2 to 6 MiB and 6 to 11 MiB, and after a gap of 1 MiB 12 to 14.
 * Block 3, from 8 MiB, does not exist; the block from 10 MiB is half a one. */
static uvm_va_block_t *first[] = { &blocks[0], &blocks[1] }, *second[] = { &blocks[2], NULL, &blocks[3] }, *third[] = { NULL };
static uvm_va_range_managed_t ranges[] = {
	{ { { 2 * MIB, 6 * MIB - 1 } }, first }, { { { 6 * MIB, 11 * MIB - 1 } }, second }, { { { 12 * MIB, 14 * MIB - 1 } }, third },
};

/* Everything that exists is on the GPU, in the order of its addresses. */
static void reset(void)
{
	static const NvU64 starts[] = { 2, 4, 6, 10 };

	memset(blocks, 0, sizeof(blocks));
	memset(chunks, 0, sizeof(chunks));
	list_init(used_list(&gpu.pmm));
	for (int i = 0; i < 4; i++) {
		blocks[i].start = starts[i] * MIB;
		blocks[i].end = blocks[i].start + (i == 3 ? 1 : 2) * MIB - 1;
		blocks[i].resident.bits = 1 << 1;
		blocks[i].chunk = &chunks[i];
		chunks[i].state = UVM_PMM_GPU_CHUNK_STATE_ALLOCATED;
		chunks[i].size = 2 * MIB;
		list_put(&chunks[i].list, used_list(&gpu.pmm)->prev);
		for (NvU64 p = 0; p < uvm_va_block_size(&blocks[i]) / PAGE_SIZE; p++)
			blocks[i].on[1].page[p] = true;
	}
	space.ranges = ranges;
	space.count = 3;
	space.pinned = false;
	parent.faults = true;
	moves = flushed = links_checked = retries = fail_allocation = 0;
	moves_before_failure = -1;
}

static UVM_PENSTOCK_EVICT_PARAMS evict(NvU64 base, NvU64 length)
{
	UVM_PENSTOCK_EVICT_PARAMS p = { .base = base, .length = length };

	CHECK(uvm_penstock_ioctl(&file, UVM_PENSTOCK_EVICT, (unsigned long)&p) == 0);
	/* However it ended: nothing is held, nothing leaks, no copy is under way. */
	CHECK(!space.lock.held && !mm.lock.held && allocated == 0 && links_retained == 0 && !copying);
	for (int i = 0; i < 4; i++)
		CHECK(!blocks[i].lock.held);
	return p;
}

static void test_evict(void)
{
	UVM_PENSTOCK_EVICT_PARAMS p;

	reset();
	p = evict(2 * MIB, 9 * MIB); /* all of two ranges */
	CHECK(p.rmStatus == NV_OK && p.evicted == 7 * MIB && moves == 4 && links_checked == 1 && flushed == 1);
	for (int i = 0; i < 4; i++)
		CHECK(uvm_page_mask_weight(&blocks[i].on[1]) == 0 && uvm_page_mask_weight(&blocks[i].on[0]) * PAGE_SIZE == uvm_va_block_size(&blocks[i]));
	p = evict(2 * MIB, 9 * MIB); /* again: nothing is left to do */
	CHECK(p.rmStatus == NV_OK && p.evicted == 0 && moves == 4);

	reset();
	p = evict(3 * MIB, 2 * MIB); /* half of two blocks */
	CHECK(p.rmStatus == NV_OK && p.evicted == 2 * MIB && moves == 2);
	CHECK(blocks[0].on[1].page[255] && !blocks[0].on[1].page[256] && !blocks[1].on[1].page[255] && blocks[1].on[1].page[256]);

	reset();
	blocks[0].on[2] = blocks[0].on[1]; /* a copy on another GPU counts once */
	blocks[0].resident.bits |= 1 << 2;
	p = evict(2 * MIB, 2 * MIB);
	CHECK(p.evicted == 2 * MIB && uvm_page_mask_weight(&blocks[0].on[2]) == 0);

	reset();
	retries = 3;
	p = evict(2 * MIB, 2 * MIB);
	CHECK(p.rmStatus == NV_OK && p.evicted == 2 * MIB);

	reset();
	p = evict(2 * MIB, 11 * MIB); /* past the end of what touches */
	CHECK(p.rmStatus == NV_ERR_INVALID_ADDRESS && p.evicted == 7 * MIB);
	CHECK(evict(11 * MIB, 1 * MIB).rmStatus == NV_ERR_INVALID_ADDRESS);
	CHECK(evict(20 * MIB, 1 * MIB).rmStatus == NV_ERR_INVALID_ADDRESS);
	CHECK(evict(12 * MIB, 2 * MIB).rmStatus == NV_OK);
	CHECK(evict(2 * MIB + 1, 2 * MIB).rmStatus == NV_ERR_INVALID_ADDRESS);
	CHECK(evict(2 * MIB, 0).rmStatus == NV_ERR_INVALID_ADDRESS);
	CHECK(evict(-PAGE_SIZE, 2 * PAGE_SIZE).rmStatus == NV_ERR_INVALID_ADDRESS);

	reset();
	moves_before_failure = 2;
	p = evict(2 * MIB, 9 * MIB);
	CHECK(p.rmStatus == NV_ERR_NO_MEMORY && p.evicted == 4 * MIB);
	for (int n = 1; n <= 2; n++) {
		reset();
		fail_allocation = n;
		p = evict(2 * MIB, 2 * MIB);
		CHECK(p.rmStatus == NV_ERR_NO_MEMORY && p.evicted == 0 && moves == 0);
	}
	reset();
	space.pinned = true;
	CHECK(evict(2 * MIB, 2 * MIB).rmStatus == NV_ERR_ILLEGAL_ACTION && moves == 0);

	reset();
	p = (UVM_PENSTOCK_EVICT_PARAMS){ .base = 2 * MIB, .length = 2 * MIB, .flags = 1 };
	CHECK(uvm_penstock_ioctl(&file, UVM_PENSTOCK_EVICT, (unsigned long)&p) == 0 && p.rmStatus == NV_ERR_INVALID_ARGUMENT && moves == 0);
	p.flags = 0;
	CHECK(uvm_penstock_ioctl(&empty, UVM_PENSTOCK_EVICT, (unsigned long)&p) == 0 && p.rmStatus == NV_ERR_ILLEGAL_ACTION);

	reset(); /* the process that made the space has ended: another holds its descriptor */
	space.mm = NULL;
	CHECK(evict(2 * MIB, 2 * MIB).rmStatus == NV_OK);
	space.mm = &mm;
}

static UVM_PENSTOCK_HINT_PARAMS hint(NvU64 base, NvU64 length, NvU32 where)
{
	UVM_PENSTOCK_HINT_PARAMS p = { .base = base, .length = length, .gpu = gpu.uuid, .hint = where };

	CHECK(uvm_penstock_ioctl(&file, UVM_PENSTOCK_HINT, (unsigned long)&p) == 0);
	CHECK(!space.lock.held && !gpu.pmm.list_lock.held);
	for (int i = 0; i < 4; i++)
		CHECK(!blocks[i].lock.held);
	return p;
}

/* order is how the driver would evict, as digits. */
static int order(void)
{
	int n = 0;

	for (struct list_head *l = used_list(&gpu.pmm)->next; l != used_list(&gpu.pmm); l = l->next)
		n = n * 10 + (int)((uvm_gpu_chunk_t *)l - chunks);
	return n;
}

static void test_hint(void)
{
	UVM_PENSTOCK_HINT_PARAMS p;

	reset();
	CHECK(order() == 123); /* 0, 1, 2, 3 */
	p = hint(2 * MIB, 4 * MIB, UVM_PENSTOCK_HINT_LAST);
	CHECK(p.rmStatus == NV_OK && p.blocks == 2 && order() == 2301);
	p = hint(4 * MIB, 2 * MIB, UVM_PENSTOCK_HINT_NEXT);
	CHECK(p.rmStatus == NV_OK && p.blocks == 1 && order() == 1230);
	p = hint(10 * MIB, 1 * MIB, UVM_PENSTOCK_HINT_NEXT); /* not a whole block */
	CHECK(p.rmStatus == NV_OK && p.blocks == 0 && order() == 1230);

	reset(); /* what is being evicted, pinned or off the lists stays where it is */
	chunks[1].in_eviction = true;
	chunks[2].state = UVM_PMM_GPU_CHUNK_STATE_TEMP_PINNED;
	hint(4 * MIB, 4 * MIB, UVM_PENSTOCK_HINT_NEXT);
	CHECK(order() == 123);
	blocks[0].resident.bits = 1; /* only on the host */
	CHECK(hint(2 * MIB, 2 * MIB, UVM_PENSTOCK_HINT_LAST).blocks == 0 && order() == 123);

	reset();
	CHECK(hint(2 * MIB, 2 * MIB, 0).rmStatus == NV_ERR_INVALID_ARGUMENT);
	CHECK(hint(2 * MIB, 2 * MIB, 3).rmStatus == NV_ERR_INVALID_ARGUMENT);
	CHECK(hint(2 * MIB, 1, 1).rmStatus == NV_ERR_INVALID_ADDRESS);
	CHECK(hint(20 * MIB, 2 * MIB, 1).rmStatus == NV_ERR_INVALID_ADDRESS);
	p = (UVM_PENSTOCK_HINT_PARAMS){ .base = 2 * MIB, .length = 2 * MIB, .gpu = gpu.uuid, .hint = 1, .reserved = 1 };
	CHECK(uvm_penstock_ioctl(&file, UVM_PENSTOCK_HINT, (unsigned long)&p) == 0 && p.rmStatus == NV_ERR_INVALID_ARGUMENT);
	p = (UVM_PENSTOCK_HINT_PARAMS){ .base = 2 * MIB, .length = 2 * MIB, .hint = 1 };
	CHECK(uvm_penstock_ioctl(&file, UVM_PENSTOCK_HINT, (unsigned long)&p) == 0 && p.rmStatus == NV_ERR_INVALID_DEVICE);
#ifdef UVM_PENSTOCK_OLD_GPUS
	parent.faults = false;
	CHECK(hint(2 * MIB, 2 * MIB, 1).rmStatus == NV_ERR_INVALID_DEVICE);
#endif
	CHECK(order() == 123);
}

int main(void)
{
	UVM_PENSTOCK_VERSION_PARAMS v = { 0 };

	CHECK(uvm_penstock_ioctl(&empty, UVM_PENSTOCK_VERSION, (unsigned long)&v) == 0 && v.rmStatus == NV_OK && v.version == UVM_PENSTOCK_INTERFACE);
	CHECK(uvm_penstock_ioctl(&file, 243, 0) == 7); /* the driver's own go on */
	CHECK(uvm_penstock_ioctl(&file, 9999, 0) == -ENOSYS);
	test_evict();
	test_hint();
	puts("fine");
	return 0;
}
