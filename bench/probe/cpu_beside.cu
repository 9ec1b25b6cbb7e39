// cpu_beside.cu - by how much copies over the bus slow the CPU's own work down.
//
// Build:  nvcc -O2 -std=c++17 -o cpu_beside cpu_beside.cu -lcuda
// Run:    ./cpu_beside           one line of JSON a row, 1 GiB of plain device and of pinned memory, a minute
//
// A job whose memory is swapped takes more CPU for the same work. What a thread may wait for while
// the copy engines read and write host memory is taken apart here: arithmetic (the clock of its core),
// loads that depend on each other over 256 KiB to 256 MiB (caches, memory), calls all over a large program
// (instruction caches), and launches of an empty kernel (the card's registers). Each row is what goes on
// beside; each figure the median of RUNS in nanoseconds an operation.

#include <numeric>
#include <random>
#include <utility>

#include "vmm.h"

static const int RUNS = 15;
static const size_t PIECE_MIB = 8;

// timed is the median of what an operation takes when work does so many at a time.
template <class F> static double timed(long operations, F work) {
	std::vector<double> ns;
	for (int i = 0; i < RUNS; i++) {
		double t = now_us();
		work();
		ns.push_back((now_us() - t) * 1e3 / operations);
	}
	return at(ns, 0.5);
}

static volatile uint64_t sink;

static double arithmetic() {
	const long n = 5 << 20;
	return timed(n, [] {
		uint64_t x = 1;
		for (long i = 0; i < n; i++) x = x * 6364136223846793005u + 1442695040888963407u; // each waits for the one before
		sink = x;
	});
}

// Ring is a random cycle through all cache lines of a piece of memory.
struct Ring {
	static const size_t STEP = 64 / sizeof(uint32_t);
	std::vector<uint32_t> next;

	explicit Ring(size_t bytes) : next(bytes / sizeof(uint32_t)) {
		std::vector<uint32_t> order(bytes / 64);
		std::iota(order.begin(), order.end(), 0);
		std::shuffle(order.begin() + 1, order.end(), std::mt19937(1));
		for (size_t i = 0; i < order.size(); i++) next[order[i] * STEP] = order[(i + 1) % order.size()];
	}
	double loads() const {
		const long n = std::min<long>(next.size() / STEP, 200000);
		return timed(n, [&] {
			uint32_t x = 0;
			for (long i = 0; i < n; i++) x = next[x * STEP];
			sink = x;
		});
	}
};

// function is one of many that differ, of some 500 bytes each.
template <int N> __attribute__((noinline)) static uint64_t function(uint64_t x) {
#define STEP(i) x = (x ^ (x >> (N % 29 + i))) * (2 * (uint64_t)N + 3 + i) + (x << (N % 13 + i));
#define STEPS(i) STEP(i) STEP(i + 1) STEP(i + 2) STEP(i + 3) STEP(i + 4) STEP(i + 5)
	STEPS(1) STEPS(7) STEPS(13) STEPS(19)
	return x;
}
using Function = uint64_t (*)(uint64_t);
template <int... N> static std::vector<Function> functions(std::integer_sequence<int, N...>) { return {function<N>...}; }

static double calls() {
	static std::vector<Function> all = functions(std::make_integer_sequence<int, 4096>());
	static bool shuffled = (std::shuffle(all.begin(), all.end(), std::mt19937(2)), true);
	return timed(all.size(), [] {
		uint64_t x = shuffled;
		for (Function f : all) x = f(x);
		sink = x;
	});
}

static const char *EMPTY = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty()\n{\n\tret;\n}\n";

static double launches(CUfunction f, CUstream s) {
	const long n = 500;
	return timed(n, [=] {
		for (long i = 0; i < n; i++) CHECK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, nullptr, nullptr));
	});
}

int main() {
	open_device();
	const Buffers cached, combined(CU_MEMHOSTALLOC_WRITECOMBINED);
	CUmodule module;
	CUfunction empty;
	CUstream stream;
	CHECK(cuModuleLoadData(&module, EMPTY));
	CHECK(cuModuleGetFunction(&empty, module, "empty"));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	std::vector<Ring> rings;
	for (size_t kib : {256, 1024, 4096, 16384, 65536, 262144}) rings.emplace_back(kib << 10);
	for (int round = 0; round < 2; round++) {
		for (int beside = 0; beside < 8; beside++) { // bit 0: copies in, bit 1: copies out, bit 2: write-combined
			if (beside == 4) continue;
			const Buffers &buffers = beside & 4 ? combined : cached;
			Copying c;
			if (beside & 1) c.start(PIECE_MIB, 2, 0, buffers, true);
			if (beside & 2) c.start(PIECE_MIB, 1, 0, buffers, false);
			double a = arithmetic(), f = calls();
			std::vector<double> loads;
			for (const Ring &r : rings) loads.push_back(r.loads());
			double l = launches(empty, stream);
			CHECK(cuStreamSynchronize(stream));
			c.end();
			printf("{\"round\": %d, \"beside\": \"%s\", \"write_combined\": %s, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f, \"multiply_ns\": %.3f, \"call_ns\": %.1f, \"launch_ns\": %.0f", round,
			       (const char *[]){"nothing", "copies in", "copies out", "copies both ways"}[beside & 3], beside & 4 ? "true" : "false", c.in_gb_per_s, c.out_gb_per_s, a, f, l);
			for (size_t i = 0; i < rings.size(); i++) printf(", \"load_%zu_kib_ns\": %.1f", rings[i].next.size() * sizeof(uint32_t) >> 10, loads[i]);
			printf("}\n");
			fflush(stdout);
		}
	}
}
