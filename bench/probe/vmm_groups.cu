// vmm_groups.cu - what setting access costs, beside copies both ways, when several handles that
// are mapped next to each other get it in one call, and what unmapping them in one call costs.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_groups vmm_groups.cu -lcuda
// Run:    ./vmm_groups           one line of JSON a row; less than 2 GiB of plain device memory
//
// One thread maps a group of handles, sets access once and unmaps it once. Beside it a thread
// for each direction copies pieces, one at a time.

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
				Copying copies;
				if (piece) {
					copies.start(8, 1, 0, buffers, true);
					copies.start(piece, 1, 0, buffers, false);
				}
				std::this_thread::sleep_for(std::chrono::milliseconds(20));
				Spent spent;
				for (double from = now_us(); now_us() - from < 100e3;) spent.once(base, bytes, handles, group);
				copies.end();
				printf("{\"handle_mib\": %zu, \"piece_out_mib\": %zu, \"group\": %d, \"map_us\": %.1f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"unmap_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f}\n",
				       handle_mib, piece, group, at(spent.maps, .5), at(spent.accesses, .5), at(spent.accesses, .9), at(spent.unmaps, .5), copies.in_gb_per_s, copies.out_gb_per_s);
				fflush(stdout);
			}
		for (auto &h : handles) CHECK(cuMemRelease(h));
	}
	return 0;
}
