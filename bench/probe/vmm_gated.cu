// vmm_gated.cu - how long setting access to mapped device memory waits for copies out that are
// queued ahead, with something of another engine between them that makes the copy engine idle for a moment.
//
// Build:  nvcc -O2 -std=c++17 -arch=sm_90 -o vmm_gated vmm_gated.cu -lcuda
// Run:    ./vmm_gated            one line of JSON a row; less than 2 GiB of plain device memory, 1 GiB of host memory
//
// One thread maps a handle of 8 MiB at one place after the other, sets access and unmaps it,
// beside a thread that copies out in pieces and, in the second half, one that copies in.

#include "vmm.h"

static const int PLACES = 32;

enum Between { NOTHING, COPY_ON_DEVICE, FILL, COPY_IN, KERNEL, OTHER_STREAM, EVENTS, KINDS };
static const char *names[KINDS] = {"nothing", "copy on the device", "fill", "copy in", "kernel", "value of another stream", "event of another stream"};

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n";
static CUfunction empty;

__global__ void spin(long long cycles) {
	for (long long t = clock64(); clock64() - t < cycles;) {
	}
}

static void copy_out(Between between, size_t kib, unsigned in_flight, const Buffers &b, std::atomic<bool> *stop, std::atomic<long> *bytes) {
	CUdeviceptr device = b.device + COPIED, host = (CUdeviceptr)b.host + COPIED;
	volatile unsigned *word = (volatile unsigned *)b.words + 16;
	CUdeviceptr ping = (CUdeviceptr)b.words + 256, pong = (CUdeviceptr)b.words + 512;
	CHECK(cuCtxSetCurrent(context));
	int low, high;
	CHECK(cuCtxGetStreamPriorityRange(&low, &high));
	CUstream s, other;
	CHECK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, high));
	CHECK(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, high));
	CUevent there, back;
	CHECK(cuEventCreate(&there, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
	*word = 0;
	*(volatile unsigned *)ping = *(volatile unsigned *)pong = 0;
	size_t n = kib << 10;
	for (unsigned i = 1; !*stop; i++) {
		size_t o = i * n % COPIED;
		CHECK(cuMemcpyAsync(host + o, device + o, n, s));
		switch (between) {
		case COPY_ON_DEVICE: CHECK(cuMemcpyDtoDAsync(b.device, b.device + 4096, 4, s)); break;
		case FILL: CHECK(cuMemsetD32Async(b.device, 1, 1, s)); break;
		case COPY_IN: CHECK(cuMemcpyHtoDAsync(b.device, (void *)((char *)b.words + 1024), 4, s)); break;
		case KERNEL: CHECK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr)); break;
		case OTHER_STREAM:
			CHECK(cuStreamWriteValue32(s, ping, i, 0));
			CHECK(cuStreamWaitValue32(other, ping, i, CU_STREAM_WAIT_VALUE_GEQ));
			CHECK(cuStreamWriteValue32(other, pong, i, 0));
			CHECK(cuStreamWaitValue32(s, pong, i, CU_STREAM_WAIT_VALUE_GEQ));
			break;
		case EVENTS:
			CHECK(cuEventRecord(there, s));
			CHECK(cuStreamWaitEvent(other, there, 0));
			CHECK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, other, nullptr, nullptr));
			CHECK(cuEventRecord(back, other));
			CHECK(cuStreamWaitEvent(s, back, 0));
			break;
		default: break;
		}
		CHECK(cuStreamWriteValue32(s, (CUdeviceptr)word, i, 0));
		while ((int)(*word - (i - in_flight + 1)) < 0) {
		}
		*bytes += n;
	}
	CHECK(cuStreamSynchronize(s));
	CHECK(cuStreamSynchronize(other));
	CHECK(cuStreamDestroy(s));
	CHECK(cuStreamDestroy(other));
	CHECK(cuEventDestroy(there));
	CHECK(cuEventDestroy(back));
}

int main() {
	open_device();
	CUmodule module;
	CHECK(cuModuleLoadData(&module, ptx));
	CHECK(cuModuleGetFunction(&empty, module, "empty"));
	Buffers buffers;
	CUdeviceptr base;
	const size_t bytes = 8 * MIB;
	CHECK(cuMemAddressReserve(&base, PLACES * bytes, 0, 0, 0));
	CUmemGenericAllocationHandle handle;
	CHECK(cuMemCreate(&handle, bytes, &prop, 0));
	struct Row { Between between; size_t kib; unsigned in_flight; };
	std::vector<Row> rows = {{NOTHING, 8192, 1}, {NOTHING, 4096, 1}, {NOTHING, 2048, 1}, {NOTHING, 8192, 3}};
	for (int k = COPY_ON_DEVICE; k < KINDS; k++)
		for (size_t kib : {8192, 4096, 2048, 1024}) rows.push_back({Between(k), kib, 4});
	for (bool load : {false, true})
	for (bool in : {false, true})
		for (Row r : rows) {
			if (load && (!in || r.kib != 4096)) continue;
			Copying copies;
			if (in) copies.start(32, 2, 0, buffers, true);
			copies.threads.emplace_back(copy_out, r.between, r.kib, r.in_flight, std::cref(buffers), &copies.stop, &copies.out);
			if (load) copies.threads.emplace_back([&] {
				CHECK(cuCtxSetCurrent(context));
				CUstream s;
				CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
				while (!copies.stop) {
					for (int i = 0; i < 20; i++) spin<<<132 * 8, 256, 0, (cudaStream_t)s>>>(40000);
					CHECK(cuStreamSynchronize(s));
				}
				CHECK(cuStreamDestroy(s));
			});
			std::this_thread::sleep_for(std::chrono::milliseconds(15));
			Spent spent;
			double from = now_us();
			long in_first = copies.in, out_first = copies.out;
			for (int i = 0; now_us() - from < 100e3; i++) {
				spent.once(base + i % PLACES * bytes, bytes, &handle);
				for (double t = now_us() + 137; now_us() < t;) {
				}
			}
			double s = (now_us() - from) / 1e6, gin = (copies.in - in_first) / s / 1e9, gout = (copies.out - out_first) / s / 1e9;
			// and undisturbed
			in_first = copies.in, out_first = copies.out, from = now_us();
			std::this_thread::sleep_for(std::chrono::milliseconds(50));
			double u = (now_us() - from) / 1e6, uin = (copies.in - in_first) / u / 1e9, uout = (copies.out - out_first) / u / 1e9;
			copies.end();
			printf("{\"between\": \"%s\", \"kib\": %zu, \"in_flight\": %u, \"copies_in\": %s, \"kernels\": %s, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"unmap_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f, \"alone_in_gb_per_s\": %.1f, \"alone_out_gb_per_s\": %.1f}\n",
			       names[r.between], r.kib, r.in_flight, in ? "true" : "false", load ? "true" : "false", at(spent.accesses, .5), at(spent.accesses, .9), at(spent.unmaps, .5), gin, gout, uin, uout);
			fflush(stdout);
		}
	return 0;
}
