// vmm_threads.cu - what mapping device memory costs when several threads do it, alone and
// beside copies and launches.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_threads vmm_threads.cu -lcuda
// Run:    ./vmm_threads          one line of JSON a row, at most 4 GiB of plain device memory
//
// Each thread has handles and addresses of its own. A round is what bringing a chunk in
// takes: unmap the old place, release, create, map, set access. Times are medians of
// single calls in microseconds; `rounds_per_s` counts all threads together.

#include <atomic>
#include <thread>

#include "vmm.h"

static const int CALLS = 5, PLACES = 16;
static const char *names[CALLS] = {"unmap", "release", "create", "map", "set_access"};

struct Work {
	std::vector<double> us[CALLS];
	long rounds = 0;
};

// mapper remaps for a while; with recycle a handle goes from place to place and is
// never released.
static void mapper(Work *w, size_t bytes, bool recycle, std::atomic<bool> *stop) {
	CHECK(cuCtxSetCurrent(context));
	CUdeviceptr base;
	CHECK(cuMemAddressReserve(&base, 2 * PLACES * bytes, 0, 0, 0));
	CUmemGenericAllocationHandle h[PLACES];
	for (int i = 0; i < PLACES; i++) {
		CHECK(cuMemCreate(&h[i], bytes, &prop, 0));
		CHECK(cuMemMap(base + i * bytes, bytes, 0, h[i], 0));
		CHECK(cuMemSetAccess(base + i * bytes, bytes, &rw, 1));
	}
	CUdeviceptr where[PLACES];
	for (int i = 0; i < PLACES; i++) where[i] = base + i * bytes;
	int other = PLACES;
	CUdeviceptr free_place = base + other * bytes;
	for (int i = 0; !*stop; i = (i + 1) % PLACES) {
		double t0 = now_us();
		CHECK(cuMemUnmap(where[i], bytes));
		double t1 = now_us(), t2 = t1, t3 = t1;
		if (!recycle) {
			CHECK(cuMemRelease(h[i]));
			t2 = now_us();
			CHECK(cuMemCreate(&h[i], bytes, &prop, 0));
			t3 = now_us();
		}
		CHECK(cuMemMap(free_place, bytes, 0, h[i], 0));
		double t4 = now_us();
		CHECK(cuMemSetAccess(free_place, bytes, &rw, 1));
		double t5 = now_us();
		std::swap(free_place, where[i]);
		double d[CALLS] = {t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4};
		for (int c = 0; c < CALLS; c++) w->us[c].push_back(d[c]);
		w->rounds++;
	}
	for (int i = 0; i < PLACES; i++) {
		CHECK(cuMemUnmap(where[i], bytes));
		CHECK(cuMemRelease(h[i]));
	}
	CHECK(cuMemAddressFree(base, 2 * PLACES * bytes));
}

__global__ void nothing() {}

static void launcher(std::vector<double> *us, std::atomic<bool> *stop) {
	CHECK(cuCtxSetCurrent(context));
	CUstream s;
	CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	for (long i = 0; !*stop; i++) {
		double t = now_us();
		nothing<<<1, 1, 0, (cudaStream_t)s>>>();
		us->push_back(now_us() - t);
		if (i % 64 == 0) CHECK(cuStreamSynchronize(s));
	}
	CHECK(cuStreamSynchronize(s));
}

// copier keeps two copies of 32 MiB in flight one way.
static void copier(CUdeviceptr device, void *host, bool in, std::atomic<bool> *stop, std::atomic<long> *bytes) {
	CHECK(cuCtxSetCurrent(context));
	CUstream s;
	CUevent e[2];
	CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	for (auto &x : e) CHECK(cuEventCreate(&x, CU_EVENT_DISABLE_TIMING));
	for (long i = 0; !*stop; i++) {
		if (i > 1) {
			CHECK(cuEventSynchronize(e[i % 2]));
			*bytes += 32 * MIB;
		}
		size_t o = (i % 2) * 32 * MIB;
		if (in) CHECK(cuMemcpyHtoDAsync(device + o, (char *)host + o, 32 * MIB, s));
		else CHECK(cuMemcpyDtoHAsync((char *)host + o, device + o, 32 * MIB, s));
		CHECK(cuEventRecord(e[i % 2], s));
	}
	CHECK(cuStreamSynchronize(s));
}

int main() {
	open_device();
	nothing<<<1, 1>>>();
	CHECK(cuCtxSynchronize());
	CUdeviceptr device;
	void *host[2];
	CHECK(cuMemAlloc(&device, 128 * MIB));
	for (auto &h : host) CHECK(cuMemAllocHost(&h, 64 * MIB));
	for (size_t mib : {2, 8, 32})
		for (bool recycle : {false, true})
			for (int beside : {0, 1, 2, 3})
				for (int threads : {1, 2, 3}) {
					if (beside == 0 && threads == 3) continue;
					std::atomic<bool> stop{false};
					std::atomic<long> in{0}, out{0};
					std::vector<Work> work(threads);
					std::vector<double> launches;
					std::vector<std::thread> t;
					double began = now_us();
					for (auto &w : work) t.emplace_back(mapper, &w, mib * MIB, recycle, &stop);
					if (beside & 1) t.emplace_back(launcher, &launches, &stop);
					if (beside & 2) {
						t.emplace_back(copier, device, host[0], true, &stop, &in);
						t.emplace_back(copier, device + 64 * MIB, host[1], false, &stop, &out);
					}
					std::this_thread::sleep_for(std::chrono::milliseconds(250));
					stop = true;
					for (auto &x : t) x.join();
					double s = (now_us() - began) / 1e6;
					long rounds = 0;
					printf("{\"chunk_mib\": %zu, \"recycle\": %d, \"launches\": %d, \"copies\": %d, \"threads\": %d", mib, recycle, beside & 1, beside >> 1, threads);
					for (auto &w : work) rounds += w.rounds;
					printf(", \"rounds_per_s\": %.0f, \"gib_per_s\": %.1f", rounds / s, rounds / s * mib / 1024);
					for (int c = 0; c < CALLS; c++) {
						std::vector<double> all;
						for (auto &w : work) all.insert(all.end(), w.us[c].begin(), w.us[c].end());
						double p50 = at(all, 0.5);
						printf(", \"%s\": %.1f, \"%s_p99\": %.1f", names[c], p50, names[c], at(all, 0.99));
					}
					if (beside & 1) {
						double p50 = at(launches, 0.5);
						printf(", \"launch\": %.2f, \"launch_p99\": %.1f, \"launch_max\": %.0f", p50, at(launches, 0.99), at(launches, 1));
					}
					if (beside & 2) printf(", \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f", in / s / 1e9, out / s / 1e9);
					printf("}\n");
					fflush(stdout);
				}
	return 0;
}
