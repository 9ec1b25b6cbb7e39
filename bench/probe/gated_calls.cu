// gated_calls.cu - which calls of the driver, made while a stream waits for a word, keep another thread from mapping memory,
// copying to it and launching: what a launch hook must not let a thread do while the stream waits for such memory.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 -o gated_calls bench/probe/gated_calls.cu -lcuda && ./gated_calls
//
// A stream (the legacy one, or one of its own that does not block) waits for a word in pinned memory, with a kernel behind
// it. One thread makes a call; 30 ms later another one maps memory, copies in and out of it, launches a kernel, waits for it and unmaps the memory. Then the
// word is written, whatever has happened. A JSON line a call: "returns" before the word was written or not, and "work_ms" of the
// other thread, or that it was blocked until then. Some MiB of plain device memory.

#include "vmm.h"

#include <cstring>
#include <unistd.h>

typedef std::function<void()> Call;

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n";
static const size_t BYTES = 2 * MIB;
static volatile unsigned *word;
static CUstream own, other;
static CUfunction empty;
static CUdeviceptr place, plain;
static char *pinned, *pageable;

template <int N> __global__ void late(int *p) {
	if (p) *p = N;
}

static void launch(CUstream s) { CHECK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr)); }

// work is what an engine does to bring memory.
static void work() {
	CHECK(cuCtxSetCurrent(context));
	CUmemGenericAllocationHandle h;
	CHECK(cuMemCreate(&h, BYTES, &prop, 0));
	CHECK(cuMemMap(place, BYTES, 0, h, 0));
	CHECK(cuMemSetAccess(place, BYTES, &rw, 1));
	CHECK(cuMemcpyAsync(place, (CUdeviceptr)pinned, BYTES, other));
	CHECK(cuMemcpyAsync((CUdeviceptr)pinned, place, BYTES, other));
	launch(other);
	CHECK(cuStreamWriteValue32(other, (CUdeviceptr)(word + 32), 1, 0));
	while (word[32] != 1) {
	}
	word[32] = 0;
	CHECK(cuMemUnmap(place, BYTES));
	CHECK(cuMemRelease(h));
}

static void try_call(const char *stream, CUstream s, const char *name, Call before, std::function<void(CUstream)> call, Call after) {
	*word = 0;
	if (before) before();
	CHECK(cuStreamWaitValue32(s, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
	launch(s);
	std::atomic<bool> returned{false}, worked{false};
	double took = 0;
	std::thread caller([&] {
		CHECK(cuCtxSetCurrent(context));
		call(s);
		returned = true;
	});
	usleep(30000);
	std::thread worker([&] {
		double from = now_us();
		work();
		took = now_us() - from;
		worked = true;
	});
	for (int i = 0; i < 300 && !worked; i++) usleep(1000);
	bool w = worked, r = returned;
	*word = 1;
	caller.join();
	worker.join();
	CHECK(cuCtxSynchronize());
	if (after) after();
	printf("{\"stream\": \"%s\", \"call\": \"%s\", \"returns\": %s, \"blocks_others\": %s, \"work_ms\": %.2f}\n", stream, name, r ? "true" : "false", w ? "false" : "true", took / 1000);
	fflush(stdout);
}

int main() {
	open_device();
	CUmodule module, loaded;
	CHECK(cuModuleLoadData(&module, ptx));
	CHECK(cuModuleGetFunction(&empty, module, "empty"));
	CHECK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAddressReserve(&place, BYTES, 0, 0, 0));
	CHECK(cuMemAlloc(&plain, BYTES));
	CHECK(cuMemHostAlloc((void **)&pinned, BYTES, 0));
	CHECK(cuMemHostAlloc((void **)&word, 4096, 0));
	pageable = (char *)malloc(BYTES);
	memset(pageable, 1, BYTES);
	work();
	CUdeviceptr d;
	void *h;
	CUevent e;
	CUstream t;
	CHECK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
	for (int k = 0; k < 2; k++) {
		const char *on = k ? "its own" : "legacy";
		CUstream s = k ? own : CU_STREAM_LEGACY;
		auto go = [&](const char *name, std::function<void(CUstream)> call, Call before = nullptr, Call after = nullptr) { try_call(on, s, name, before, call, after); };
		go("nothing", [](CUstream) {});
		go("cuStreamSynchronize", [](CUstream s) { CHECK(cuStreamSynchronize(s)); });
		go("cuCtxSynchronize", [](CUstream) { CHECK(cuCtxSynchronize()); });
		go("cuEventRecord, cuEventSynchronize", [&](CUstream s) { CHECK(cuEventRecord(e, s)); CHECK(cuEventSynchronize(e)); });
		go("cuStreamQuery", [](CUstream s) { cuStreamQuery(s); });
		go("cuStreamWaitEvent of another", [&](CUstream s) { CHECK(cuEventRecord(e, s)); CHECK(cuStreamWaitEvent(other, e, 0)); });
		go("cuLaunchKernel", [](CUstream s) { launch(s); });
		go("cuLaunchKernel 900 times", [](CUstream s) { for (int i = 0; i < 900; i++) launch(s); });
		go("cuLaunchKernel 1100 times", [](CUstream s) { for (int i = 0; i < 1100; i++) launch(s); });
		if (k) go("first launch of a kernel", [](CUstream s) { late<1><<<1, 1, 0, s>>>(nullptr); });
		else go("first launch of a kernel", [](CUstream s) { late<0><<<1, 1, 0, s>>>(nullptr); });
		go("cuModuleLoadData", [&](CUstream) { CHECK(cuModuleLoadData(&loaded, ptx)); }, nullptr, [&] { CHECK(cuModuleUnload(loaded)); });
		go("cuModuleUnload", [&](CUstream) { CHECK(cuModuleUnload(loaded)); }, [&] { CHECK(cuModuleLoadData(&loaded, ptx)); });
		go("cuMemAlloc", [&](CUstream) { CHECK(cuMemAlloc(&d, 64 * MIB)); }, nullptr, [&] { CHECK(cuMemFree(d)); });
		go("cuMemFree", [&](CUstream) { CHECK(cuMemFree(d)); }, [&] { CHECK(cuMemAlloc(&d, 64 * MIB)); });
		go("cuMemHostAlloc", [&](CUstream) { CHECK(cuMemHostAlloc(&h, 16 * MIB, 0)); }, nullptr, [&] { CHECK(cuMemFreeHost(h)); });
		go("cuMemFreeHost", [&](CUstream) { CHECK(cuMemFreeHost(h)); }, [&] { CHECK(cuMemHostAlloc(&h, 16 * MIB, 0)); });
		go("cuMemHostRegister", [&](CUstream) { CHECK(cuMemHostRegister(pageable, BYTES, 0)); }, nullptr, [&] { CHECK(cuMemHostUnregister(pageable)); });
		go("cuMemHostUnregister", [&](CUstream) { CHECK(cuMemHostUnregister(pageable)); }, [&] { CHECK(cuMemHostRegister(pageable, BYTES, 0)); });
		go("cuMemcpyHtoD", [](CUstream) { CHECK(cuMemcpyHtoD(plain, pageable, 4096)); });
		go("cuMemcpyDtoH", [](CUstream) { CHECK(cuMemcpyDtoH(pageable, plain, 4096)); });
		go("cuMemcpyHtoDAsync, 4 KiB pageable", [](CUstream s) { CHECK(cuMemcpyHtoDAsync(plain, pageable, 4096, s)); });
		go("cuMemcpyHtoDAsync, 2 MiB pageable", [](CUstream s) { CHECK(cuMemcpyHtoDAsync(plain, pageable, BYTES, s)); });
		go("cuMemcpyDtoHAsync, pageable", [](CUstream s) { CHECK(cuMemcpyDtoHAsync(pageable, plain, 4096, s)); });
		go("cuMemcpyHtoDAsync, pinned", [](CUstream s) { CHECK(cuMemcpyHtoDAsync(plain, pinned, BYTES, s)); });
		go("cuMemcpyDtoDAsync", [](CUstream s) { CHECK(cuMemcpyDtoDAsync(plain, plain + MIB, MIB, s)); });
		go("cuMemsetD8Async", [](CUstream s) { CHECK(cuMemsetD8Async(plain, 0, BYTES, s)); });
		go("cuMemsetD8", [](CUstream) { CHECK(cuMemsetD8(plain, 0, BYTES)); });
		go("cuMemAllocAsync", [&](CUstream s) { CHECK(cuMemAllocAsync(&d, 64 * MIB, s)); }, nullptr, [&] { CHECK(cuMemFree(d)); });
		go("cuMemFreeAsync", [&](CUstream s) { CHECK(cuMemFreeAsync(d, s)); }, [&] { CHECK(cuMemAlloc(&d, 64 * MIB)); });
		go("cuStreamCreate", [&](CUstream) { CHECK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING)); }, nullptr, [&] { CHECK(cuStreamDestroy(t)); });
		go("cuStreamDestroy", [&](CUstream) { CHECK(cuStreamDestroy(t)); }, [&] { CHECK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING)); });
		go("cuLaunchHostFunc", [](CUstream s) { CHECK(cuLaunchHostFunc(s, [](void *) {}, nullptr)); });
		go("cuMemGetInfo", [](CUstream) { size_t a, b; CHECK(cuMemGetInfo(&a, &b)); });
		go("cuPointerGetAttribute", [](CUstream) { unsigned type; CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain)); });
		go("cuCtxSetLimit, stack", [&](CUstream) { CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, k ? 4096 : 2048)); });
	}
}
