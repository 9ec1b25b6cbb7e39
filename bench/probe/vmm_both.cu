// vmm_both.cu - how long setting access to mapped device memory waits when copies go both
// ways and kernels are launched, by how the copies are queued.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_both vmm_both.cu -lcuda
// Run:    ./vmm_both             one line of JSON a row; less than 2 GiB of plain device memory
//
// A direction's copies are of some MiB, so many in flight, each queued when a word in pinned
// memory says that an earlier one is done; with a gap, that many microseconds later. One thread maps
// 8 MiB again and again with a pause between, as the engine does between two moves.

#include <functional>
#include <thread>

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
					std::atomic<bool> stop{false};
					std::atomic<long> in_bytes{0}, out_bytes{0};
					std::vector<std::thread> threads;
					if (in.mib) threads.emplace_back(copy_over_and_over, in.mib, in.in_flight, in.gap_us, std::cref(buffers), true, &stop, &in_bytes);
					if (out.mib) threads.emplace_back(copy_over_and_over, out.mib, out.in_flight, out.gap_us, std::cref(buffers), false, &stop, &out_bytes);
					if (launches)
						threads.emplace_back([&] {
							CHECK(cuCtxSetCurrent(context));
							CUstream s;
							CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
							while (!stop) {
								CHECK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr));
								for (double t = now_us() + 10; now_us() < t;) {
								}
							}
							CHECK(cuStreamSynchronize(s));
						});
					std::this_thread::sleep_for(std::chrono::milliseconds(15));
					std::vector<double> accesses;
					double from = now_us();
					long in_first = in_bytes, out_first = out_bytes;
					for (int i = 0; now_us() - from < 120e3; i++) {
						CUdeviceptr p = base + i % PLACES * bytes;
						CHECK(cuMemMap(p, bytes, 0, handle, 0));
						double t1 = now_us();
						CHECK(cuMemSetAccess(p, bytes, &rw, 1));
						accesses.push_back(now_us() - t1);
						CHECK(cuMemUnmap(p, bytes));
						for (double t = now_us() + pause_us; now_us() < t;) {
						}
					}
					double s = (now_us() - from) / 1e6, gin = (in_bytes - in_first) / s / 1e9, gout = (out_bytes - out_first) / s / 1e9;
					stop = true;
					for (auto &t : threads) t.join();
					printf("{\"launches\": %s, \"in_mib\": %zu, \"in_in_flight\": %u, \"in_gap_us\": %.0f, \"out_mib\": %zu, \"out_in_flight\": %u, \"out_gap_us\": %.0f, \"pause_us\": %.0f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f}\n",
					       launches ? "true" : "false", in.mib, in.in_flight, in.gap_us, out.mib, out.in_flight, out.gap_us, pause_us, at(accesses, .5), at(accesses, .9), gin, gout);
					fflush(stdout);
				}
	return 0;
}
