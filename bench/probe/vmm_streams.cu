// vmm_streams.cu - copies out on several streams by turns, one piece in flight on each, beside mapping.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_streams vmm_streams.cu -lcuda
// Run:    ./vmm_streams          one line of JSON a row; less than 2 GiB of plain device memory
//
// The engine that copies to the host also writes page tables. It turns to them when the stream that it
// copies for has nothing queued, and after a time slice of about 1 ms when it always has. With another
// stream's copy waiting it need not be idle in between.

#include "vmm.h"

static const double SECONDS = 0.4;

// copy_by_turns copies out in pieces, with one in flight on each stream.
static void copy_by_turns(size_t piece, int streams, const Buffers &b, std::atomic<bool> *stop, std::atomic<long> *bytes) {
	CHECK(cuCtxSetCurrent(context));
	CUstream s[8];
	volatile unsigned *words = (volatile unsigned *)b.words + 32;
	unsigned queued[8] = {};
	for (int k = 0; k < streams; k++) {
		CHECK(cuStreamCreate(&s[k], CU_STREAM_NON_BLOCKING));
		words[16 * k] = 0;
	}
	for (size_t n = 0; !*stop; n++) {
		int k = n % streams;
		while ((int)(words[16 * k] - queued[k]) < 0) {
		}
		size_t o = n * piece % COPIED;
		CHECK(cuMemcpyAsync((CUdeviceptr)b.host + COPIED + o, b.device + COPIED + o, piece, s[k]));
		CHECK(cuStreamWriteValue32(s[k], (CUdeviceptr)(words + 16 * k), ++queued[k], 0));
		*bytes += piece;
	}
	for (int k = 0; k < streams; k++) {
		CHECK(cuStreamSynchronize(s[k]));
		CHECK(cuStreamDestroy(s[k]));
	}
}

static void measure(size_t piece_kib, int streams, bool in, double pause_us, const Buffers &buffers) {
	CUdeviceptr base;
	CUmemGenericAllocationHandle h;
	CHECK(cuMemAddressReserve(&base, 64 * MIB, 0, 0, 0));
	CHECK(cuMemCreate(&h, 64 * MIB, &prop, 0));
	std::atomic<bool> stop{false};
	std::atomic<long> out{0};
	Copying copies;
	if (in) copies.start(32, 2, 0, buffers, true);
	std::thread t(copy_by_turns, piece_kib << 10, streams, std::cref(buffers), &stop, &out);
	std::this_thread::sleep_for(std::chrono::milliseconds(20));
	Spent spent;
	long before = out;
	double began = now_us();
	while (now_us() - began < SECONDS * 1e6) {
		if (pause_us < 0) {
			std::this_thread::sleep_for(std::chrono::milliseconds(10));
			continue;
		}
		spent.once(base, 64 * MIB, &h);
		for (double at = now_us() + pause_us; now_us() < at;) {
		}
	}
	double rate = (out - before) / (now_us() - began) / 1e3;
	stop = true;
	t.join();
	copies.end();
	printf("{\"piece_kib\": %zu, \"streams\": %d, \"copies_in\": %s, \"pause_us\": %.0f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"unmap_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f}\n",
	       piece_kib, streams, in ? "true" : "false", pause_us, at(spent.accesses, 0.5), at(spent.accesses, 0.9), at(spent.unmaps, 0.5), copies.in_gb_per_s, rate);
	fflush(stdout);
	CHECK(cuMemRelease(h));
	CHECK(cuMemAddressFree(base, 64 * MIB));
}

int main() {
	open_device();
	Buffers buffers;
	for (bool in : {false, true})
		for (double pause : {-1.0, 300.0})
			for (int streams : {1, 2, 3})
				for (size_t kib : {1024, 2048, 4096, 8192, 16384})
					measure(kib, streams, in, pause, buffers);
	return 0;
}
