// vmm.h - what the probes of mapped device memory share.

#ifndef VMM_H
#define VMM_H

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
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
// first, and words in pinned memory.
struct Buffers {
	CUdeviceptr device;
	void *host, *words;
	Buffers() {
		CHECK(cuMemAlloc(&device, 2 * COPIED));
		CHECK(cuMemAllocHost(&host, 2 * COPIED));
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

#endif
