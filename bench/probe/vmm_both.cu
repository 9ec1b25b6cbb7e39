// vmm_both.cu - how long setting access to mapped device memory waits when copies go both
// ways and kernels are launched, by how the copies are queued.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_both vmm_both.cu -lcuda
// Run:    ./vmm_both             one line of JSON a row; less than 2 GiB of plain device memory
//
// A direction's copies are of some MiB, so many in flight, each queued when a word in pinned
// memory says that an earlier one is done; with a gap, that many microseconds later. One thread maps
// 8 MiB again and again with a pause between, as the engine does between two moves.

#include "vmm.h"

static const int PLACES = 32;

struct Copies {
	size_t mib; // 0: none
	unsigned in_flight;
	double gap_us;
};

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n";

int main() {
	open_device();
	CUmodule module;
	CUfunction empty;
	CHECK(cuModuleLoadData(&module, ptx));
	CHECK(cuModuleGetFunction(&empty, module, "empty"));
	Buffers buffers;
	CUdeviceptr base;
	const size_t bytes = 8 * MIB;
	CHECK(cuMemAddressReserve(&base, PLACES * bytes, 0, 0, 0));
	CUmemGenericAllocationHandle handle;
	CHECK(cuMemCreate(&handle, bytes, &prop, 0));
	const Copies ins[] = {{0, 1, 0}, {32, 2, 0}, {32, 1, 0}, {8, 1, 0}, {8, 1, 10}}, outs[] = {{0, 1, 0}, {8, 1, 0}, {8, 1, 10}, {8, 4, 0}};
	for (bool launches : {false, true})
		for (Copies in : ins)
			for (Copies out : outs)
				for (double pause_us : {50.0, 300.0}) {
					Copying copies;
					if (in.mib) copies.start(in.mib, in.in_flight, in.gap_us, buffers, true);
					if (out.mib) copies.start(out.mib, out.in_flight, out.gap_us, buffers, false);
					if (launches)
						copies.threads.emplace_back([&] {
							CHECK(cuCtxSetCurrent(context));
							CUstream s;
							CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
							while (!copies.stop) {
								CHECK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr));
								for (double t = now_us() + 10; now_us() < t;) {
								}
							}
							CHECK(cuStreamSynchronize(s));
						});
					std::this_thread::sleep_for(std::chrono::milliseconds(15));
					Spent spent;
					double from = now_us();
					long in_first = copies.in, out_first = copies.out;
					for (int i = 0; now_us() - from < 120e3; i++) {
						spent.once(base + i % PLACES * bytes, bytes, &handle);
						for (double t = now_us() + pause_us; now_us() < t;) {
						}
					}
					double s = (now_us() - from) / 1e6, gin = (copies.in - in_first) / s / 1e9, gout = (copies.out - out_first) / s / 1e9;
					copies.end();
					printf("{\"launches\": %s, \"in_mib\": %zu, \"in_in_flight\": %u, \"in_gap_us\": %.0f, \"out_mib\": %zu, \"out_in_flight\": %u, \"out_gap_us\": %.0f, \"pause_us\": %.0f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f}\n",
					       launches ? "true" : "false", in.mib, in.in_flight, in.gap_us, out.mib, out.in_flight, out.gap_us, pause_us, at(spent.accesses, .5), at(spent.accesses, .9), gin, gout);
					fflush(stdout);
				}
	return 0;
}
