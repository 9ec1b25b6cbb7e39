// mark_order.cpp - does a word that a stream writes after a copy say that the copy is done?
//
// Build:  g++ -O2 -std=c++17 -o mark_order mark_order.cpp -lcuda          two GPUs: with and without peer access
//         g++ -O2 -std=c++17 -shared -fPIC -o libmark_order.so mark_order.cpp -lcuda
// Run:    ./mark_order            a line a row; less than 1 GiB of plain device memory of each GPU
//         or, in another program's current context, mark_order("what is new") of the library
//
// After each copy of 8 MiB a mark is put on the same stream, in several ways. Who sees the
// mark, this thread or another stream that waits for it, looks at once how much of the
// copy is there, in pages of 4 KiB.

#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include "vmm.h"

static const size_t BYTES = 8 * MIB, PAGE = 4096, PAGES = BYTES / PAGE;
static const int TIMES = 16;

enum Mark { WRITE, WRITE_NO_BARRIER, EVENT_THEN_WRITE, EVENT, BATCH_BARRIER, OTHER_STREAM, COPY_OF_4, FILL, MARKS };
static const char *const names[MARKS] = {
	"cuStreamWriteValue32", "the same, without a barrier", "an event, then cuStreamWriteValue32", "an event, asked by cuEventQuery",
	"cuStreamBatchMemOp, barrier and write", "cuStreamWriteValue32 on a stream that waits for an event", "a copy of 4 bytes", "cuMemsetD32Async of the word",
};

struct Rig {
	CUdeviceptr device, other, word_device, from_word;
	uint32_t *host, *small;
	volatile uint32_t *word;
	CUstream s, behind, watcher;
	CUevent event;
	uint32_t ticket = 0;
};

static CUdeviceptr map_device(size_t bytes, CUdevice dev, const std::vector<CUmemAccessDesc> &access) {
	CUmemAllocationProp p = {};
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location = {CU_MEM_LOCATION_TYPE_DEVICE, dev};
	p.requestedHandleTypes = access.size() > 1 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
	CUmemGenericAllocationHandle h;
	CUdeviceptr a;
	CHECK(cuMemCreate(&h, bytes, &p, 0));
	CHECK(cuMemAddressReserve(&a, bytes, 2 * MIB, 0, 0));
	CHECK(cuMemMap(a, bytes, 0, h, 0));
	CHECK(cuMemSetAccess(a, bytes, access.data(), access.size()));
	return a;
}

static Rig make_rig(CUdevice dev) {
	Rig r;
	std::vector<CUmemAccessDesc> own(1);
	own[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, dev};
	own[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	r.device = map_device(BYTES, dev, own);
	r.other = map_device(BYTES, dev, own);
	r.host = (uint32_t *)mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(r.host, 0, BYTES);
	CHECK(cuMemHostRegister(r.host, BYTES, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECK(cuMemHostAlloc((void **)&r.small, PAGE, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
	CHECK(cuMemHostAlloc((void **)&r.word, PAGE, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
	CHECK(cuMemHostGetDevicePointer(&r.word_device, (void *)r.word, 0));
	*r.word = 0;
	CHECK(cuMemAlloc(&r.from_word, PAGE));
	CHECK(cuStreamCreate(&r.s, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&r.behind, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&r.watcher, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&r.event, CU_EVENT_DISABLE_TIMING));
	return r;
}

static void put(Rig &r, Mark m) {
	uint32_t v = ++r.ticket;
	CUstreamBatchMemOpParams ops[2];
	switch (m) {
	case WRITE: CHECK(cuStreamWriteValue32(r.s, r.word_device, v, 0)); break;
	case WRITE_NO_BARRIER: CHECK(cuStreamWriteValue32(r.s, r.word_device, v, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)); break;
	case EVENT_THEN_WRITE: CHECK(cuEventRecord(r.event, r.s)); CHECK(cuStreamWaitEvent(r.s, r.event, 0)); CHECK(cuStreamWriteValue32(r.s, r.word_device, v, 0)); break;
	case EVENT: CHECK(cuEventRecord(r.event, r.s)); break;
	case BATCH_BARRIER:
		memset(ops, 0, sizeof ops);
		ops[0].operation = CU_STREAM_MEM_OP_BARRIER;
		ops[0].memoryBarrier.flags = CU_STREAM_MEMORY_BARRIER_TYPE_SYS;
		ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
		ops[1].writeValue.address = r.word_device;
		ops[1].writeValue.value = v;
		CHECK(cuStreamBatchMemOp(r.s, 2, ops, 0));
		break;
	case OTHER_STREAM: CHECK(cuEventRecord(r.event, r.s)); CHECK(cuStreamWaitEvent(r.behind, r.event, 0)); CHECK(cuStreamWriteValue32(r.behind, r.word_device, v, 0)); break;
	case COPY_OF_4: CHECK(cuMemcpyAsync(r.word_device, r.from_word, 4, r.s)); break;
	case FILL: CHECK(cuMemsetD32Async(r.word_device, v, 1, r.s)); break;
	default: abort();
	}
}

static void await(Rig &r, Mark m) {
	if (m == EVENT) {
		CUresult q;
		while ((q = cuEventQuery(r.event)) == CUDA_ERROR_NOT_READY) {}
		CHECK(q);
	} else {
		while (*r.word != r.ticket) {}
	}
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static size_t stale(const uint32_t *p, uint32_t value) {
	size_t n = 0;
	for (size_t i = PAGES; i-- > 0;) n += p[i * PAGE / 4 + PAGE / 4 - 1] != value;
	return n;
}

struct Row { size_t worst = 0, bad = 0; std::vector<double> us, all_us; };

// A copy out: this thread looks when it sees the mark.
static Row copy_out(Rig &r, Mark m) {
	Row row;
	for (int i = 0; i < TIMES; i++) {
		uint32_t value = 0x1000 + i, ticket = r.ticket + 1;
		memset(r.host, 0xff, BYTES);
		CHECK(cuMemsetD32(r.device, value, BYTES / 4));
		if (m == COPY_OF_4) CHECK(cuMemsetD32(r.from_word, ticket, 1));
		CHECK(cuCtxSynchronize());
		double from = now_us();
		CHECK(cuMemcpyAsync((CUdeviceptr)r.host, r.device, BYTES, r.s));
		put(r, m);
		await(r, m);
		double seen = now_us();
		size_t n = stale(r.host, value);
		CHECK(cuStreamSynchronize(r.s));
		row.us.push_back(seen - from);
		row.all_us.push_back(now_us() - from);
		if (stale(r.host, value)) { fprintf(stderr, "a copy out is not there after cuStreamSynchronize\n"); exit(1); }
		row.worst = std::max(row.worst, n);
		row.bad += n > 0;
	}
	return row;
}

// A copy in, or on the device: a stream that waits for the mark copies the last page away.
static Row copy_watched(Rig &r, Mark m, bool in, CUstream s) {
	Row row;
	CUstream mine = r.s;
	if (s != mine) r.s = s;
	for (int i = 0; i < TIMES; i++) {
		uint32_t value = 0x2000 + i;
		CUdeviceptr to = in ? r.device : r.other;
		CHECK(cuMemsetD32(to, ~value, BYTES / 4));
		for (size_t k = 0; in && k < BYTES / 4; k++) r.host[k] = value;
		if (!in) CHECK(cuMemsetD32(r.device, value, BYTES / 4));
		if (m == COPY_OF_4) CHECK(cuMemsetD32(r.from_word, r.ticket + 1, 1));
		CHECK(cuCtxSynchronize());
		double from = now_us();
		if (m != EVENT) {
			CHECK(cuStreamWaitValue32(r.watcher, r.word_device, r.ticket + 1, CU_STREAM_WAIT_VALUE_GEQ));
			CHECK(cuMemcpyAsync((CUdeviceptr)r.small, to + BYTES - PAGE, PAGE, r.watcher));
		}
		CHECK(cuMemcpyAsync(to, in ? (CUdeviceptr)r.host : r.device, BYTES, r.s));
		put(r, m);
		if (m == EVENT) {
			CHECK(cuStreamWaitEvent(r.watcher, r.event, 0));
			CHECK(cuMemcpyAsync((CUdeviceptr)r.small, to + BYTES - PAGE, PAGE, r.watcher));
		}
		CHECK(cuStreamSynchronize(r.watcher));
		row.us.push_back(now_us() - from);
		size_t n = r.small[PAGE / 4 - 1] != value;
		CHECK(cuCtxSynchronize());
		row.worst = std::max(row.worst, n);
		row.bad += n;
	}
	r.s = mine;
	return row;
}

static void print(const char *label, const char *what, Mark m, Row row) {
	printf("%-34s %-28s %-58s %2zu of %d too early, at most %4zu pages missing; %7.1f us to the mark%s\n", label, what, names[m], row.bad, TIMES, row.worst, at(row.us, 0.5),
		row.all_us.empty() ? "" : (", " + std::to_string(int(at(row.all_us, 0.5))) + " in all").c_str());
	fflush(stdout);
}

static Rig rigs[2];
static bool made[2];

extern "C" void mark_order(const char *label) {
	CUdevice dev;
	CHECK(cuCtxGetDevice(&dev));
	if (!made[dev]) rigs[dev] = make_rig(dev), made[dev] = true;
	Rig old = rigs[dev];
	for (int fresh = 0; fresh < 2; fresh++) {
		Rig r = fresh ? make_rig(dev) : old;
		std::string l = std::string(label) + (fresh ? " (new streams)" : "");
		for (int m = 0; m < MARKS; m++) print(l.c_str(), "out", Mark(m), copy_out(r, Mark(m)));
		for (int m = 0; m < MARKS; m++) if (m == WRITE || m == EVENT || m == EVENT_THEN_WRITE || m == OTHER_STREAM) {
			print(l.c_str(), "in", Mark(m), copy_watched(r, Mark(m), true, r.s));
			print(l.c_str(), "on the device", Mark(m), copy_watched(r, Mark(m), false, r.s));
			print(l.c_str(), "on the device, default stream", Mark(m), copy_watched(r, Mark(m), false, NULL));
		}
		if (!fresh) rigs[dev] = r;
	}
}

int main() {
	CHECK(cuInit(0));
	int n = 0;
	CHECK(cuDeviceGetCount(&n));
	CUcontext c[2];
	for (int i = 0; i < n && i < 2; i++) CHECK(cuDevicePrimaryCtxRetain(&c[i], i));
	CHECK(cuCtxSetCurrent(c[0]));
	mark_order("alone");
	if (n < 2) return 0;
	std::vector<CUmemAccessDesc> both(2);
	for (int i = 0; i < 2; i++) {
		both[i].location = {CU_MEM_LOCATION_TYPE_DEVICE, i};
		both[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	CHECK(cuCtxSetCurrent(c[1]));
	CUdeviceptr peer = map_device(16 * MIB, 1, both);
	CHECK(cuMemsetD32(peer, 1, 4 * MIB));
	CHECK(cuCtxSynchronize());
	CHECK(cuCtxSetCurrent(c[0]));
	mark_order("memory of the peer mapped");
	CHECK(cuMemsetD32(peer, 2, 4 * MIB));
	CHECK(cuMemcpyAsync(rigs[0].device, peer, BYTES, NULL));
	CHECK(cuCtxSynchronize());
	mark_order("and used");
	CHECK(cuCtxEnablePeerAccess(c[1], 0));
	mark_order("cuCtxEnablePeerAccess");
	return 0;
}
