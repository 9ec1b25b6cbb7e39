// vmm_copies.cu - how long setting access to mapped device memory waits for copies, by
// their direction, their size and how they are queued.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_copies vmm_copies.cu -lcuda
// Run:    ./vmm_copies           one line of JSON a row; less than 2 GiB of plain device memory
//
// One thread maps a handle of 8 MiB at one place after the other, sets access and unmaps
// it. Beside it each direction has a thread that keeps so many copies in flight: it
// watches a word in pinned memory that the stream writes after each copy.

#include "vmm.h"

static const int PLACES = 32;

struct Copies {
	size_t mib;
	unsigned in_flight;
};

int main() {
	open_device();
	Buffers buffers;
	CUdeviceptr base;
	const size_t bytes = 8 * MIB;
	CHECK(cuMemAddressReserve(&base, PLACES * bytes, 0, 0, 0));
	CUmemGenericAllocationHandle handle;
	CHECK(cuMemCreate(&handle, bytes, &prop, 0));
	for (int directions : {0, 1, 2, 3})
		for (Copies c : {Copies{2, 1}, Copies{4, 1}, Copies{8, 1}, Copies{16, 1}, Copies{32, 1}, Copies{4, 2}, Copies{8, 4}, Copies{32, 2}}) {
			Copying copies;
			if (directions & 1) copies.start(c.mib, c.in_flight, 0, buffers, true);
			if (directions & 2) copies.start(c.mib, c.in_flight, 0, buffers, false);
			std::this_thread::sleep_for(std::chrono::milliseconds(40));
			Spent spent;
			double from = now_us();
			for (int i = 0; now_us() - from < 150e3; i++) spent.once(base + i % PLACES * bytes, bytes, &handle);
			copies.end();
			static const char *names[] = {"none", "in", "out", "both"};
			printf("{\"copies\": \"%s\", \"mib\": %zu, \"in_flight\": %u, \"map_us\": %.1f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"unmap_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f}\n",
			       names[directions], c.mib, c.in_flight, at(spent.maps, .5), at(spent.accesses, .5), at(spent.accesses, .9), at(spent.unmaps, .5), copies.in_gb_per_s, copies.out_gb_per_s);
			fflush(stdout);
			if (!directions) break;
		}
	return 0;
}
