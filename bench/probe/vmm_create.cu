// vmm_create.cu - what creating and releasing physical handles takes from copies beside them.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_create vmm_create.cu -lcuda
// Run:    ./vmm_create           one line of JSON a row; at most 13 GiB of plain device memory
//
// Memory that a process gives back is cleared before another gets it. Which engine does that, when, and
// how fast shows in what copies lose: "lost_us" is the time of copies that one handle cost, and
// "gb_per_s" its bytes over that.

#include "vmm.h"

static const int HANDLES = 192;
static const double SECONDS = 0.4, NOISE_US = 10;

enum What { NOTHING, CREATE, RELEASE, BOTH };
static const char *names[] = {"nothing", "create", "release", "create and release"};

static CUmemGenericAllocationHandle create(size_t bytes) {
	CUmemGenericAllocationHandle h;
	CHECK(cuMemCreate(&h, bytes, &prop, 0));
	return h;
}

// run does so with handles, spread over SECONDS of copies one way, and answers GB/s of these.
static double run(What what, size_t bytes, bool in, const Buffers &buffers, int *done, std::vector<double> *took) {
	std::vector<CUmemGenericAllocationHandle> handles;
	int most = std::min<int>(HANDLES, 12288 * MIB / bytes);
	if (what == RELEASE)
		for (int i = 0; i < most; i++) handles.push_back(create(bytes));
	std::this_thread::sleep_for(std::chrono::milliseconds(100)); // what was begun is done
	Copying copies;
	copies.start(32, 2, 0, buffers, in);
	double began = now_us(), each = SECONDS * 1e6 / most;
	*done = 0;
	for (int i = 0; i < most && now_us() - began < SECONDS * 1e6; i++) {
		while (now_us() - began < i * each) {
		}
		double t = now_us();
		if (what == RELEASE) {
			CHECK(cuMemRelease(handles.back()));
			handles.pop_back();
		} else if (what != NOTHING) {
			handles.push_back(create(bytes));
		}
		if (what == BOTH) {
			CHECK(cuMemRelease(handles.back()));
			handles.pop_back();
		}
		took->push_back(now_us() - t);
		++*done;
	}
	while (now_us() - began < SECONDS * 1e6) {
	}
	copies.end();
	for (auto h : handles) CHECK(cuMemRelease(h));
	return in ? copies.in_gb_per_s : copies.out_gb_per_s;
}

int main() {
	open_device();
	Buffers buffers;
	for (bool in : {true, false}) {
		std::vector<double> took;
		int done;
		run(NOTHING, 64 * MIB, in, buffers, &done, &took);
		double alone = run(NOTHING, 64 * MIB, in, buffers, &done, &took);
		printf("{\"copies\": \"%s\", \"what\": \"nothing\", \"copies_gb_per_s\": %.1f}\n", in ? "in" : "out", alone);
		for (size_t mib : {2, 8, 32, 64, 128})
			for (What what : {CREATE, RELEASE, BOTH}) {
				took.clear();
				double rate = run(what, mib * MIB, in, buffers, &done, &took);
				double lost = (1 - rate / alone) * SECONDS * 1e6 / done;
				printf("{\"copies\": \"%s\", \"what\": \"%s\", \"mib\": %zu, \"handles\": %d, \"call_us\": %.1f, \"call_p90_us\": %.1f, \"copies_gb_per_s\": %.1f, \"lost_us\": %.1f, \"gb_per_s\": %.0f}\n",
				       in ? "in" : "out", names[what], mib, done, at(took, 0.5), at(took, 0.9), rate, lost, lost < NOISE_US ? 0 : mib * MIB / lost / 1e3);
			}
	}
	// Whether memory of another kind is cleared as well.
	struct { const char *name; int rdma, handles, compression; } kinds[] = {{"plain", 0, 0, 0}, {"rdma", 1, 0, 0}, {"file descriptor", 0, 1, 0}, {"compressible", 0, 0, 1}};
	for (auto &k : kinds) {
		prop.allocFlags.gpuDirectRDMACapable = k.rdma;
		prop.requestedHandleTypes = (CUmemAllocationHandleType)k.handles;
		prop.allocFlags.compressionType = k.compression;
		CUmemGenericAllocationHandle h;
		CUresult r = cuMemCreate(&h, 64 * MIB, &prop, 0);
		if (r != CUDA_SUCCESS) {
			printf("{\"kind\": \"%s\", \"create\": %d}\n", k.name, r);
			continue;
		}
		CHECK(cuMemRelease(h));
		std::vector<double> took;
		int done;
		double rate = run(BOTH, 64 * MIB, true, buffers, &done, &took);
		printf("{\"kind\": \"%s\", \"what\": \"create and release\", \"mib\": 64, \"handles\": %d, \"call_us\": %.1f, \"copies_gb_per_s\": %.1f}\n", k.name, done, at(took, 0.5), rate);
	}
	return 0;
}
