// beside.h - what may go on beside a thread whose speed is measured: parts of what swapping does.

#ifndef BESIDE_H
#define BESIDE_H

#include <cstdint>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include "vmm.h"

static const size_t PIECE_MIB = 8;
static volatile uint64_t sink;

// Threads run something over and over until they are ended.
struct Threads {
	std::atomic<bool> stop{false};
	std::vector<std::thread> threads;

	template <class F> void start(int n, F once) {
		for (int i = 0; i < n; i++) threads.emplace_back([=] {
			prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
			CHECK(cuCtxSetCurrent(context));
			while (!stop) once();
		});
	}
	void end() {
		stop = true;
		for (auto &t : threads) t.join();
	}
};

static void pause_us(long us) {
	timespec t{0, us * 1000};
	nanosleep(&t, nullptr);
}

// map_once makes memory of the device and takes it away again.
static void map_once(CUdeviceptr base, size_t bytes) {
	CUmemGenericAllocationHandle h;
	CHECK(cuMemCreate(&h, bytes, &prop, 0));
	CHECK(cuMemMap(base, bytes, 0, h, 0));
	CHECK(cuMemSetAccess(base, bytes, &rw, 1));
	CHECK(cuMemUnmap(base, bytes));
	CHECK(cuMemRelease(h));
	pause_us(200);
}

// give_back_once has a page made and taken away, of which all processors of the process are told.
static void give_back_once() {
	static char *page = (char *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*(volatile char *)page = 1;
	madvise(page, 4096, MADV_DONTNEED);
	pause_us(400);
}

// compute_once is 0.1 ms of arithmetic.
static void compute_once() {
	uint64_t x = 1;
	for (long i = 0; i < 100000; i++) x = x * 6364136223846793005u + 1442695040888963407u;
	sink = x;
}

// Kind is something that may go on beside.
struct Kind {
	const char *name;
	bool in, out, combined;
	void (*others)(Threads &, CUdeviceptr);
};

static const Kind KINDS[] = {
	{"nothing"},
	{"copies_in", true},
	{"copies_out", false, true},
	{"copies", true, true},
	{"copies_in_wc", true, false, true},
	{"copies_out_wc", false, true, true},
	{"copies_wc", true, true, true},
	{"mapping", false, false, false, [](Threads &t, CUdeviceptr base) { t.start(1, [=] { map_once(base, 16 * MIB); }); }},
	{"pausing", false, false, false, [](Threads &t, CUdeviceptr) { t.start(3, [] { pause_us(10); }); }},
	{"giving_back", false, false, false, [](Threads &t, CUdeviceptr) { t.start(1, give_back_once); }},
	{"computing_2", false, false, false, [](Threads &t, CUdeviceptr) { t.start(2, compute_once); }},
	{"computing_8", false, false, false, [](Threads &t, CUdeviceptr) { t.start(8, compute_once); }},
	{"copies_and_mapping", true, true, false, [](Threads &t, CUdeviceptr base) { t.start(1, [=] { map_once(base, 16 * MIB); }); }},
};

// Beside is what goes on beside, one kind at a time.
struct Beside {
	const Buffers cached, combined{CU_MEMHOSTALLOC_WRITECOMBINED};
	CUdeviceptr range;
	std::unique_ptr<Copying> copying;
	std::unique_ptr<Threads> threads;
	double in_gb_per_s, out_gb_per_s; // of the last that ended

	Beside() { CHECK(cuMemAddressReserve(&range, 16 * MIB, 0, 0, 0)); }
	void start(const Kind &k) {
		const Buffers &buffers = k.combined ? combined : cached;
		copying.reset(new Copying);
		threads.reset(new Threads);
		if (k.in) copying->start(PIECE_MIB, 2, 0, buffers, true);
		if (k.out) copying->start(PIECE_MIB, 1, 0, buffers, false);
		if (k.others) k.others(*threads, range);
	}
	void end() {
		copying->end();
		threads->end();
		in_gb_per_s = copying->in_gb_per_s, out_gb_per_s = copying->out_gb_per_s;
	}
};

#endif
