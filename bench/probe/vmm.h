// vmm.h - what the probes of mapped device memory share.

#ifndef VMM_H
#define VMM_H

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <functional>
#include <thread>
#include <vector>

#define CHECK(x)                                                                       \
	do {                                                                           \
		CUresult r_ = (x);                                                     \
		if (r_ != CUDA_SUCCESS) {                                              \
			const char *n_ = "?";                                          \
			cuGetErrorName(r_, &n_);                                       \
			fprintf(stderr, "%s: %s\n", #x, n_);                           \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

static const size_t MIB = 1 << 20;
static CUcontext context; // the primary one, of device 0
static CUmemAllocationProp prop;
static CUmemAccessDesc rw;

static inline double now_us() {
	return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// at sorts v and answers a quantile of it; 0 when it is empty.
static inline double at(std::vector<double> &v, double q) {
	if (v.empty()) return 0;
	std::sort(v.begin(), v.end());
	return v[std::min(v.size() - 1, size_t(q * v.size()))];
}

// open_device makes the context and says what memory and access are asked for.
static inline void open_device() {
	CUdevice dev;
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, dev));
	CHECK(cuCtxSetCurrent(context));
	prop = {};
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, dev};
	rw.location = prop.location;
	rw.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static const size_t COPIED = 256 * MIB;

// Buffers are what copies both ways take: COPIED bytes on each side for each direction, the ones in
// first, and words in pinned memory. flags are those of cuMemHostAlloc.
struct Buffers {
	CUdeviceptr device;
	void *host, *words;
	explicit Buffers(unsigned flags = 0) {
		CHECK(cuMemAlloc(&device, 2 * COPIED));
		CHECK(cuMemHostAlloc(&host, 2 * COPIED, flags));
		CHECK(cuMemAllocHost(&words, 4096));
	}
};

// copy_over_and_over copies one way until it is stopped, with so many copies in flight: it watches a
// word in pinned memory that the stream writes after each, and queues the next so many microseconds later.
static inline void copy_over_and_over(size_t mib, unsigned in_flight, double gap_us, const Buffers &b, bool in, std::atomic<bool> *stop, std::atomic<long> *bytes) {
	CUdeviceptr device = b.device + (in ? 0 : COPIED), host = (CUdeviceptr)b.host + (in ? 0 : COPIED);
	volatile unsigned *word = (volatile unsigned *)b.words + (in ? 0 : 16);
	CHECK(cuCtxSetCurrent(context));
	CUstream s;
	CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	*word = 0;
	for (unsigned i = 1; !*stop; i++) {
		size_t o = i * mib * MIB % COPIED;
		CHECK(cuMemcpyAsync(in ? device + o : host + o, in ? host + o : device + o, mib * MIB, s));
		CHECK(cuStreamWriteValue32(s, (CUdeviceptr)word, i, 0));
		while ((int)(*word - (i - in_flight + 1)) < 0) {
		}
		for (double t = now_us() + gap_us; gap_us > 0 && now_us() < t;) {
		}
		*bytes += mib * MIB;
	}
	CHECK(cuStreamSynchronize(s));
	CHECK(cuStreamDestroy(s));
}

// Copying is copies that go on until they are ended, of up to one thread for each direction.
struct Copying {
	std::atomic<bool> stop{false};
	std::atomic<long> in{0}, out{0}; // bytes
	std::vector<std::thread> threads;
	double began = now_us(), in_gb_per_s = 0, out_gb_per_s = 0;

	void start(size_t mib, unsigned in_flight, double gap_us, const Buffers &b, bool into) {
		threads.emplace_back(copy_over_and_over, mib, in_flight, gap_us, std::cref(b), into, &stop, into ? &in : &out);
	}
	void end() {
		stop = true;
		for (auto &t : threads) t.join();
		double s = (now_us() - began) / 1e6;
		in_gb_per_s = in / s / 1e9, out_gb_per_s = out / s / 1e9;
	}
};

// Spent is what calls took, in microseconds.
struct Spent {
	std::vector<double> maps, accesses, unmaps;

	// once maps handles next to each other, sets access to them in one call and unmaps them in one.
	void once(CUdeviceptr base, size_t bytes, const CUmemGenericAllocationHandle *handles, int n = 1) {
		double t0 = now_us();
		for (int k = 0; k < n; k++) CHECK(cuMemMap(base + k * bytes, bytes, 0, handles[k], 0));
		double t1 = now_us();
		CHECK(cuMemSetAccess(base, n * bytes, &rw, 1));
		double t2 = now_us();
		CHECK(cuMemUnmap(base, n * bytes));
		maps.push_back(t1 - t0);
		accesses.push_back(t2 - t1);
		unmaps.push_back(now_us() - t2);
	}
};

#endif
