// vmm.h - what the probes of mapped device memory share.

#ifndef VMM_H
#define VMM_H

#include <algorithm>
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

#endif
