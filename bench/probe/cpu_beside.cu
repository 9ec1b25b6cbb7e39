// cpu_beside.cu - by how much what swapping does slows the CPU's own work down.
//
// Build:  nvcc -O1 -std=c++17 -o cpu_beside cpu_beside.cu -lcuda
// Run:    ./cpu_beside [kind ...]    one line of JSON a row, 1 GiB of plain device and of pinned memory, a minute
//
// A job whose memory is swapped takes more CPU for the same work. What a thread may wait for while
// the copy engines read and write host memory, and while other threads map, pause, run or give pages back,
// is taken apart here: arithmetic (the clock of its core), loads that depend on each other over 256 KiB to
// 256 MiB (caches, memory) and over many pages (address translation), calls all over a large program
// (instruction caches), and launches of an empty kernel (the card's registers). Each row is what goes on
// beside, with the interrupts of the whole machine and the process's page faults a second; each figure is the
// median of RUNS in nanoseconds an operation.

#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <utility>

#include "beside.h"

static const int RUNS = 15;

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

// Pages is a random cycle through one line of each of many small pages.
struct Pages {
	static const size_t COUNT = 1200, PAGE = 4096;
	char *base;

	Pages() {
		base = (char *)mmap(nullptr, COUNT * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		madvise(base, COUNT * PAGE, MADV_NOHUGEPAGE);
		std::vector<uint32_t> order(COUNT);
		std::iota(order.begin(), order.end(), 0);
		std::shuffle(order.begin() + 1, order.end(), std::mt19937(3));
		for (size_t i = 0; i < COUNT; i++) *(uint32_t *)line(order[i]) = order[(i + 1) % COUNT];
	}
	char *line(uint32_t page) const { return base + page * PAGE + page * 7 % 64 * 64; }
	double loads() const {
		const long n = 100 * COUNT;
		return timed(n, [&] {
			uint32_t x = 0;
			for (long i = 0; i < n; i++) x = *(volatile uint32_t *)line(x);
			sink = x;
		});
	}
};

static const char *EMPTY = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty()\n{\n\tret;\n}\n";

static double launches(CUfunction f, CUstream s) {
	const long n = 500;
	return timed(n, [=] {
		for (long i = 0; i < n; i++) CHECK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, nullptr, nullptr));
	});
}

using Counts = std::map<std::string, double>;

// counts are the machine's interrupts by kind and the process's page faults.
static Counts counts() {
	Counts c;
	rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	c["page_faults"] = usage.ru_minflt;
	FILE *f = fopen("/proc/interrupts", "r");
	char text[16384];
	while (f && fgets(text, sizeof text, f)) {
		char *colon = strchr(text, ':'), *from = text + strspn(text, " ");
		if (!colon) continue;
		std::string kind(from, colon);
		if (kind != "LOC" && kind != "CAL" && kind != "TLB" && kind != "RES") continue;
		char *end = colon + 1;
		for (char *at = end;; at = end) {
			double n = strtod(at, &end);
			if (end == at) break;
			c[kind] += n;
		}
	}
	if (f) fclose(f);
	return c;
}

int main(int argc, char **argv) {
	open_device();
	Beside beside;
	CUmodule module;
	CUfunction empty;
	CUstream stream;
	CHECK(cuModuleLoadData(&module, EMPTY));
	CHECK(cuModuleGetFunction(&empty, module, "empty"));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	std::vector<Ring> rings;
	for (size_t kib : {256, 1024, 4096, 16384, 65536, 262144}) rings.emplace_back(kib << 10);
	const Pages pages;
	for (int round = 0; round < 3; round++) {
		for (const Kind &k : KINDS) {
			if (argc > 1 && std::none_of(argv + 1, argv + argc, [&](char *a) { return !strcmp(a, k.name); })) continue;
			beside.start(k);
			double began = now_us();
			Counts before = counts();
			double a = arithmetic(), f = calls(), p = pages.loads();
			std::vector<double> loads;
			for (const Ring &r : rings) loads.push_back(r.loads());
			double l = launches(empty, stream);
			Counts after = counts();
			double seconds = (now_us() - began) / 1e6;
			CHECK(cuStreamSynchronize(stream));
			beside.end();
			printf("{\"round\": %d, \"beside\": \"%s\", \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f, \"multiply_ns\": %.3f, \"call_ns\": %.1f, \"page_ns\": %.2f, \"launch_ns\": %.0f", round,
			       k.name, beside.in_gb_per_s, beside.out_gb_per_s, a, f, p, l);
			for (size_t i = 0; i < rings.size(); i++) printf(", \"load_%zu_kib_ns\": %.1f", rings[i].next.size() * sizeof(uint32_t) >> 10, loads[i]);
			for (auto &n : after) printf(", \"%s_per_s\": %.0f", n.first.c_str(), (n.second - before[n.first]) / seconds);
			printf("}\n");
			fflush(stdout);
		}
	}
}
