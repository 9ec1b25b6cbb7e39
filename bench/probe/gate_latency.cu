// gate_latency.cu - what it costs to let work go only when a sum of memory was compared on the CPU.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 -o gate_latency bench/probe/gate_latency.cu -lcuda && ./gate_latency
//
// Memory of the device is summed on one stream; the CPU watches a word in pinned memory, compares the sums, and writes
// another word, which a second stream waits for with a kernel behind it. A JSON line for each size, way and company, in
// microseconds: "sum" is what the device takes for the sum alone, "seen" from its launch until the CPU has compared,
// "released" from there until the kernel behind the gate has run; "launched" the same when the CPU launches that kernel
// instead, "both" from the launch of the sum until the kernel has run (median and p99 of 200). Ways: every block
// writes its sums to pinned memory, or they are added up on the device and copied. Company: copies both ways, of 16 MiB.

#include "vmm.h"

typedef unsigned long long u64;
static const unsigned BLOCKS = 1056, ROUNDS = 200;

static __device__ u64 mix(u64 x, u64 m) {
	x = (x ^ x >> 32) * m;
	return x ^ x >> 29;
}

// sum_of adds a block's part of both sums to out: its own pair, or the one of all.
__global__ void sum_of(const u64 *words, u64 n, u64 *out, bool shared) {
	__shared__ u64 sums[2];
	if (threadIdx.x < 2) sums[threadIdx.x] = 0;
	__syncthreads();
	u64 a = 0, b = 0;
	for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
		const u64 h = mix(words[i] + (i + 1) * 0x9e3779b97f4a7c15ull, 0xd6e8feb86659fd93ull);
		a += h;
		b += mix(h, 0xa0761d6478bd642full);
	}
	atomicAdd(&sums[0], a);
	atomicAdd(&sums[1], b);
	__syncthreads();
	if (threadIdx.x >= 2) return;
	if (shared)
		atomicAdd(out + threadIdx.x, sums[threadIdx.x]);
	else
		out[2 * blockIdx.x + threadIdx.x] = sums[threadIdx.x];
}

__global__ void say(volatile unsigned *word, unsigned value) {
	*word = value;
	__threadfence_system();
}

static void until(volatile unsigned *word, unsigned value, const char *what) {
	const double limit = now_us() + 5e6;
	while (*word != value)
		if (now_us() > limit) {
			fprintf(stderr, "gate_latency: %s did not come for 5 s (%s)\n", what, cudaGetErrorString(cudaGetLastError()));
			_Exit(1);
		}
}

static void launched_well() {
	const cudaError_t e = cudaGetLastError();
	if (e == cudaSuccess) return;
	fprintf(stderr, "gate_latency: %s\n", cudaGetErrorString(e));
	_Exit(1);
}

struct Gate {
	CUstream sums, job;
	CUdeviceptr memory, total; // total: of both sums, on the device
	u64 *pinned, expected[2];
	volatile unsigned *words; // summed, released, done: a line each
	unsigned turn = 0;

	void add_up(u64 *to, bool copied) const {
		to[0] = to[1] = 0;
		for (unsigned i = 0; i < (copied ? 1 : BLOCKS); i++) to[0] += pinned[2 * i], to[1] += pinned[2 * i + 1];
	}
	void submit(size_t bytes, bool copied) {
		if (copied) CHECK(cuMemsetD8Async(total, 0, 16, sums));
		sum_of<<<BLOCKS, 512, 0, (cudaStream_t)sums>>>((u64 *)memory, bytes / 8, copied ? (u64 *)total : pinned, copied);
		launched_well();
		if (copied) CHECK(cuMemcpyDtoHAsync(pinned, total, 16, sums));
	}
	double sum_us(size_t bytes, bool copied) {
		CUevent from, to;
		CHECK(cuEventCreate(&from, 0));
		CHECK(cuEventCreate(&to, 0));
		submit(bytes, copied);
		CHECK(cuEventRecord(from, sums));
		for (int i = 0; i < 20; i++) submit(bytes, copied);
		CHECK(cuEventRecord(to, sums));
		CHECK(cuEventSynchronize(to));
		float ms;
		CHECK(cuEventElapsedTime(&ms, from, to));
		add_up(expected, copied);
		return ms * 1e3 / 20;
	}
	void once(size_t bytes, bool copied, bool gated, std::vector<double> &seen, std::vector<double> &released, std::vector<double> &both) {
		turn++;
		if (gated) { // the gate and what is behind it are queued before, as a job's launch is
			CHECK(cuStreamWaitValue32(job, (CUdeviceptr)(words + 16), turn, CU_STREAM_WAIT_VALUE_EQ));
			say<<<1, 1, 0, (cudaStream_t)job>>>(words + 32, turn);
			launched_well();
		}
		const double t0 = now_us();
		submit(bytes, copied);
		CHECK(cuStreamWriteValue32(sums, (CUdeviceptr)words, turn, 0));
		until(words, turn, "the sum");
		u64 got[2];
		add_up(got, copied);
		if (got[0] != expected[0] || got[1] != expected[1]) {
			fprintf(stderr, "gate_latency: the sums differ\n");
			_Exit(1);
		}
		const double t1 = now_us();
		if (gated)
			words[16] = turn;
		else
			say<<<1, 1, 0, (cudaStream_t)job>>>(words + 32, turn);
		until(words + 32, turn, "what is behind the gate");
		const double t2 = now_us();
		seen.push_back(t1 - t0);
		released.push_back(t2 - t1);
		both.push_back(t2 - t0);
	}
};

int main() {
	open_device();
	Gate g;
	const size_t most = 1024 * MIB;
	CHECK(cuStreamCreate(&g.sums, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&g.job, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc(&g.memory, most));
	CHECK(cuMemAlloc(&g.total, 4096));
	CHECK(cuMemsetD8(g.memory, 0x5a, most));
	CHECK(cuMemAllocHost((void **)&g.pinned, BLOCKS * 16));
	CHECK(cuMemAllocHost((void **)&g.words, 4096));
	for (int i = 0; i < 64; i++) g.words[i] = 0;
	const Buffers buffers;
	say<<<1, 1, 0, (cudaStream_t)g.job>>>(g.words + 32, 0); // loaded now: a load waits for work that waits
	launched_well();
	CHECK(cuStreamSynchronize(g.job));
	for (bool company : {false, true}) {
		Copying copying;
		if (company) copying.start(16, 2, 0, buffers, true), copying.start(16, 2, 0, buffers, false);
		for (size_t mib : {0, 2, 16, 64, 256, 1024})
			for (bool copied : {false, true}) {
				const size_t bytes = mib ? mib * MIB : 4096;
				const double sum = g.sum_us(bytes, copied);
				std::vector<double> seen, released, both, launched, skip, all;
				for (unsigned i = 0; i < ROUNDS; i++) {
					g.once(bytes, copied, true, seen, released, both);
					g.once(bytes, copied, false, skip, launched, all);
				}
				printf("{\"bytes\":%zu,\"way\":\"%s\",\"company\":\"%s\",\"sum\":%.1f,\"seen\":[%.1f,%.1f],\"released\":[%.1f,%.1f],\"both\":[%.1f,%.1f],\"launched\":[%.1f,%.1f],\"both_launched\":[%.1f,%.1f]}\n",
					bytes, copied ? "copied" : "pinned", company ? "copies" : "none", sum, at(seen, .5), at(seen, .99), at(released, .5), at(released, .99), at(both, .5), at(both, .99), at(launched, .5), at(launched, .99), at(all, .5), at(all, .99));
				fflush(stdout);
			}
		if (company) copying.end();
	}
}
