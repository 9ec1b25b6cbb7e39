// vmm_copies.cu - how long setting access to mapped device memory waits for copies, by
// their direction, their size and how they are queued.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_copies vmm_copies.cu -lcuda
// Run:    ./vmm_copies           one line of JSON a row; less than 2 GiB of plain device memory
//
// One thread maps a handle of 8 MiB at one place after the other, sets access and unmaps
// it. Beside it each direction has a thread that keeps so many copies in flight: it
// watches a word in pinned memory that the stream writes after each copy.

#include <functional>
#include <thread>

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
			std::atomic<bool> stop{false};
			std::atomic<long> in{0}, out{0};
			std::vector<std::thread> threads;
			double began = now_us();
			if (directions & 1)
				threads.emplace_back(copy_over_and_over, c.mib, c.in_flight, 0, std::cref(buffers), true, &stop, &in);
			if (directions & 2)
				threads.emplace_back(copy_over_and_over, c.mib, c.in_flight, 0, std::cref(buffers), false, &stop, &out);
			std::this_thread::sleep_for(std::chrono::milliseconds(40));
			std::vector<double> maps, accesses, unmaps;
			double from = now_us();
			for (int i = 0; now_us() - from < 150e3; i++) {
				CUdeviceptr p = base + i % PLACES * bytes;
				double t0 = now_us();
				CHECK(cuMemMap(p, bytes, 0, handle, 0));
				double t1 = now_us();
				CHECK(cuMemSetAccess(p, bytes, &rw, 1));
				double t2 = now_us();
				CHECK(cuMemUnmap(p, bytes));
				maps.push_back(t1 - t0);
				accesses.push_back(t2 - t1);
				unmaps.push_back(now_us() - t2);
			}
			stop = true;
			for (auto &t : threads) t.join();
			double s = (now_us() - began) / 1e6;
			static const char *names[] = {"none", "in", "out", "both"};
			printf("{\"copies\": \"%s\", \"mib\": %zu, \"in_flight\": %u, \"map_us\": %.1f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"unmap_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f}\n",
			       names[directions], c.mib, c.in_flight, at(maps, .5), at(accesses, .5), at(accesses, .9), at(unmaps, .5), in / s / 1e9, out / s / 1e9);
			fflush(stdout);
			if (!directions) break;
		}
	return 0;
}
