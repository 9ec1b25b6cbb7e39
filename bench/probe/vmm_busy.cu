// vmm_busy.cu - what mapping calls cost while kernels keep the GPU busy, and whether several handles in
// one call cost less than in a call each.
//
// Build:  nvcc -O2 -std=c++17 -arch=sm_90 -o vmm_busy vmm_busy.cu -lcuda
// Run:    ./vmm_busy             one line of JSON a row; less than 5 GiB of plain device memory

#include "vmm.h"
#include <cuda_runtime.h>

static const size_t WORDS = 256 * MIB / 4;

__global__ void copy_memory(const float4 *from, float4 *to, size_t n) {
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) to[i] = from[i];
}

__global__ void compute(float *out, int rounds) {
	float a = threadIdx.x, b = 1.0001f;
	for (int i = 0; i < rounds; i++) a = a * b + 0.5f;
	if (a == 0.1f) *out = a;
}

enum Load { IDLE, COMPUTE, COPY };
static const char *loads[] = {"idle", "compute", "copies of device memory"};

// keep_busy has kernels of an estimated 100 to 200 us run one after another until it is stopped, with two queued.
static void keep_busy(Load load, std::atomic<bool> *stop) {
	CHECK(cuCtxSetCurrent(context));
	float *buffer;
	cudaMalloc(&buffer, 2 * WORDS * 4);
	cudaStream_t s;
	cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
	cudaEvent_t done[2];
	for (auto &e : done) cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
	for (int i = 0; !*stop; i++) {
		if (i > 1) cudaEventSynchronize(done[i % 2]);
		if (load == COMPUTE)
			compute<<<132 * 8, 256, 0, s>>>(buffer, 20000);
		else
			copy_memory<<<132 * 8, 256, 0, s>>>((float4 *)buffer, (float4 *)(buffer + WORDS), WORDS / 4);
		cudaEventRecord(done[i % 2], s);
	}
	cudaStreamSynchronize(s);
	cudaFree(buffer);
}

// measure maps n handles, sets access to them in one call and unmaps them in one, over and over.
static void measure(Load load, size_t bytes, int n, bool anew, CUdeviceptr base) {
	std::atomic<bool> stop{false};
	std::thread busy;
	if (load != IDLE) busy = std::thread(keep_busy, load, &stop);
	std::this_thread::sleep_for(std::chrono::milliseconds(30));
	std::vector<CUmemGenericAllocationHandle> handles(n);
	for (auto &h : handles) CHECK(cuMemCreate(&h, bytes, &prop, 0));
	Spent spent;
	std::vector<double> creates, releases;
	for (double from = now_us(); now_us() - from < 80e3;) {
		spent.once(base, bytes, handles.data(), n);
		if (!anew) continue;
		double t0 = now_us();
		for (auto &h : handles) CHECK(cuMemRelease(h));
		double t1 = now_us();
		for (auto &h : handles) CHECK(cuMemCreate(&h, bytes, &prop, 0));
		releases.push_back((t1 - t0) / n), creates.push_back((now_us() - t1) / n);
	}
	for (auto &h : handles) CHECK(cuMemRelease(h));
	stop = true;
	if (busy.joinable()) busy.join();
	printf("{\"gpu\": \"%s\", \"mib\": %zu, \"handles_in_a_call\": %d, \"anew\": %s, \"map_us\": %.1f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"unmap_us\": %.1f, \"unmap_p90_us\": %.1f, \"release_us\": %.1f, \"create_us\": %.1f, \"create_p90_us\": %.1f}\n",
	       loads[load], bytes / MIB, n, anew ? "true" : "false", at(spent.maps, .5), at(spent.accesses, .5), at(spent.accesses, .9), at(spent.unmaps, .5), at(spent.unmaps, .9),
	       at(releases, .5), at(creates, .5), at(creates, .9));
	fflush(stdout);
}

int main() {
	open_device();
	CUdeviceptr base;
	CHECK(cuMemAddressReserve(&base, 4096 * MIB, 0, 0, 0));
	for (Load load : {IDLE, COMPUTE, COPY}) {
		for (size_t mib : {8, 32, 64}) {
			for (int n : {1, 2, 4, 8}) measure(load, mib * MIB, n, false, base);
			measure(load, mib * MIB, 1, true, base);
		}
		measure(load, 256 * MIB, 1, false, base);
	}
}
