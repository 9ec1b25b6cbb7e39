// vmm_groups.cu - what setting access costs, beside copies both ways, when several handles that
// are mapped next to each other get it in one call, and what unmapping them in one call costs.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_groups vmm_groups.cu -lcuda
// Run:    ./vmm_groups           one line of JSON a row; less than 2 GiB of plain device memory
//
// One thread maps a group of handles, sets access once and unmaps it once. Beside it a thread
// for each direction copies pieces, one at a time.

#include <functional>
#include <thread>

#include "vmm.h"

static const int MOST = 16;

int main() {
	open_device();
	Buffers buffers;
	CUdeviceptr base;
	for (size_t handle_mib : {2, 8, 32}) {
		const size_t bytes = handle_mib * MIB;
		CHECK(cuMemAddressReserve(&base, MOST * bytes, 0, 0, 0));
		CUmemGenericAllocationHandle handles[MOST];
		for (auto &h : handles) CHECK(cuMemCreate(&h, bytes, &prop, 0));
		for (size_t piece : {0, 4, 8})
			for (int group : {1, 2, 4, 8, 16}) {
				std::atomic<bool> stop{false};
				std::atomic<long> in{0}, out{0};
				std::vector<std::thread> threads;
				double began = now_us();
				if (piece) {
					threads.emplace_back(copy_over_and_over, 8, 1, 0, std::cref(buffers), true, &stop, &in);
					threads.emplace_back(copy_over_and_over, piece, 1, 0, std::cref(buffers), false, &stop, &out);
				}
				std::this_thread::sleep_for(std::chrono::milliseconds(20));
				std::vector<double> maps, accesses, unmaps;
				for (double from = now_us(); now_us() - from < 100e3;) {
					double t0 = now_us();
					for (int k = 0; k < group; k++) CHECK(cuMemMap(base + k * bytes, bytes, 0, handles[k], 0));
					double t1 = now_us();
					CHECK(cuMemSetAccess(base, group * bytes, &rw, 1));
					double t2 = now_us();
					CHECK(cuMemUnmap(base, group * bytes));
					maps.push_back(t1 - t0);
					accesses.push_back(t2 - t1);
					unmaps.push_back(now_us() - t2);
				}
				stop = true;
				for (auto &t : threads) t.join();
				double s = (now_us() - began) / 1e6;
				printf("{\"handle_mib\": %zu, \"piece_out_mib\": %zu, \"group\": %d, \"map_us\": %.1f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"unmap_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f}\n",
				       handle_mib, piece, group, at(maps, .5), at(accesses, .5), at(accesses, .9), at(unmaps, .5), in / s / 1e9, out / s / 1e9);
				fflush(stdout);
			}
		for (auto &h : handles) CHECK(cuMemRelease(h));
	}
	return 0;
}
