// vmm_copy_kinds.cu - how long setting access to mapped device memory waits for copies out,
// by how they are made: is there a way that does not keep the engine which writes page tables?
//
// Build:  nvcc -O2 -std=c++17 -arch=sm_90 -o vmm_copy_kinds vmm_copy_kinds.cu -lcuda
// Run:    ./vmm_copy_kinds       a line a row; less than 2 GiB of plain device memory, 1 GiB of host memory
//
// As vmm_copies.cu: one thread maps a handle of 8 MiB at one place after the other, sets
// access and unmaps it, beside a thread that copies out and, in the second half, one that
// copies in. Kernels copy with 8 or 16 blocks.

#include <cstring>
#include "vmm.h"
static const size_t BUFFER = 256 * MIB;
static const int PLACES = 32;
__global__ void kcopy(uint4 *dst, const uint4 *src, size_t n) {
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, step = gridDim.x * (size_t)blockDim.x;
	for (; i + 3 * step < n; i += 4 * step) {
		uint4 a = src[i], b = src[i + step], c = src[i + 2 * step], d = src[i + 3 * step];
		__stcs(&dst[i], a); __stcs(&dst[i + step], b); __stcs(&dst[i + 2 * step], c); __stcs(&dst[i + 3 * step], d);
	}
	for (; i < n; i += step) dst[i] = src[i];
}
static void copier(int kind, size_t mib, unsigned in_flight, CUdeviceptr device, CUdeviceptr host, bool in, volatile unsigned *word, std::atomic<bool> *stop, std::atomic<long> *bytes) {
	CHECK(cuCtxSetCurrent(context));
	CUstream s;
	int lo, hi; cuCtxGetStreamPriorityRange(&lo, &hi);
	if (kind == 4) CHECK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, hi));
	else CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	*word = 0;
	for (unsigned i = 1; !*stop; i++) {
		size_t o = i * mib * MIB % BUFFER, n = mib * MIB;
		CUdeviceptr dst = in ? device + o : host + o, src = in ? host + o : device + o;
		if (in || kind == 0 || kind == 4) CHECK(cuMemcpyAsync(dst, src, n, s));
		else if (kind == 1) {
			CUDA_MEMCPY2D c; memset(&c, 0, sizeof c);
			c.srcMemoryType = CU_MEMORYTYPE_DEVICE; c.srcDevice = src; c.srcPitch = 1 << 20;
			c.dstMemoryType = CU_MEMORYTYPE_HOST; c.dstHost = (void *)dst; c.dstPitch = 1 << 20;
			c.WidthInBytes = 1 << 20; c.Height = n >> 20;
			CHECK(cuMemcpy2DAsync(&c, s));
		} else if (kind == 2) CHECK(cuMemcpyDtoDAsync(dst, src, n, s));
		else if (kind == 3 || kind == 5) kcopy<<<kind == 3 ? 8 : 16, 512, 0, (cudaStream_t)s>>>((uint4 *)dst, (const uint4 *)src, n / 16);
		else if (kind == 6) {
			CUDA_MEMCPY2D c; memset(&c, 0, sizeof c);
			c.srcMemoryType = CU_MEMORYTYPE_DEVICE; c.srcDevice = src; c.srcPitch = (1 << 20);
			c.dstMemoryType = CU_MEMORYTYPE_DEVICE; c.dstDevice = dst; c.dstPitch = 1 << 20;
			c.WidthInBytes = 1 << 20; c.Height = n >> 20;
			CHECK(cuMemcpy2DAsync(&c, s));
		} else if (kind == 7) {
			CUmemcpyAttributes a; memset(&a, 0, sizeof a); a.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM; a.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
			size_t z = 0; 
			CHECK(cuMemcpyBatchAsync(&dst, &src, &n, 1, &a, &z, 1, s));
		}
		CHECK(cuStreamWriteValue32(s, (CUdeviceptr)word, i, 0));
		while ((int)(*word - (i - in_flight + 1)) < 0) { }
		*bytes += n;
	}
	CHECK(cuStreamSynchronize(s));
	CHECK(cuStreamDestroy(s));
}
int main() {
	open_device();
	CUdeviceptr device, base, hv = 0;
	void *host, *words;
	CHECK(cuMemAlloc(&device, 2 * BUFFER));
	CHECK(cuMemAllocHost(&host, 2 * BUFFER));
	CHECK(cuMemAllocHost(&words, 4096));
	// host memory as a VMM handle, mapped for the device
	CUmemAllocationProp hp = {}; hp.type = CU_MEM_ALLOCATION_TYPE_PINNED; hp.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
	CUmemGenericAllocationHandle hh;
	CHECK(cuMemAddressReserve(&hv, 2 * BUFFER, 0, 0, 0));
	CHECK(cuMemCreate(&hh, 2 * BUFFER, &hp, 0));
	CHECK(cuMemMap(hv, 2 * BUFFER, 0, hh, 0));
	CHECK(cuMemSetAccess(hv, 2 * BUFFER, &rw, 1));
	const size_t bytes = 8 * MIB;
	CHECK(cuMemAddressReserve(&base, PLACES * bytes, 0, 0, 0));
	CUmemGenericAllocationHandle handle;
	CHECK(cuMemCreate(&handle, bytes, &prop, 0));
	const char *kinds[] = {"memcpy", "2d to pinned", "DtoD to host vmm", "kernel 8", "memcpy high priority", "kernel 16", "2d DtoD to host vmm", "batch prefer overlap"};
	struct R { int kind; size_t mib; unsigned fl; };
	for (int alsoIn : {0, 1})
	for (R r : {R{0, 8, 1}, R{0, 4, 1}, R{0, 8, 2}, R{1, 8, 2}, R{2, 8, 1}, R{2, 8, 2}, R{2, 32, 2}, R{6, 8, 2}, R{3, 32, 2}, R{5, 32, 2}, R{4, 8, 2}, R{7, 8, 2}}) {
			std::atomic<bool> stop{false};
			std::atomic<long> in{0}, out{0};
			std::vector<std::thread> threads;
			CUdeviceptr h = r.kind == 2 || r.kind == 6 ? hv : (CUdeviceptr)host;
			double began = now_us();
			if (alsoIn) threads.emplace_back(copier, 0, 32, 2u, device, (CUdeviceptr)host, true, (volatile unsigned *)words, &stop, &in);
			threads.emplace_back(copier, r.kind, r.mib, r.fl, device + BUFFER, h + BUFFER, false, (volatile unsigned *)words + 16, &stop, &out);
			std::this_thread::sleep_for(std::chrono::milliseconds(40));
			Spent spent;
			double from = now_us();
			for (int i = 0; now_us() - from < 150e3; i++) spent.once(base + i % PLACES * bytes, bytes, &handle);
			stop = true;
			for (auto &t : threads) t.join();
			double s = (now_us() - began) / 1e6;
			printf("in=%d %-22s mib %2zu in flight %u: set_access %.1f p90 %.1f unmap %.1f map %.1f  in %.1f out %.1f GB/s\n",
			       alsoIn, kinds[r.kind], r.mib, r.fl, at(spent.accesses, .5), at(spent.accesses, .9), at(spent.unmaps, .5), at(spent.maps, .5), in / s / 1e9, out / s / 1e9);
			fflush(stdout);
		}
	return 0;
}
