// graph_absent.cu - which calls look at addresses while a stream captures, and which when a graph is made or
// changed: each is tried on memory that is reserved and not mapped, and on memory that is mapped and not accessible.
// And what the driver says of such addresses.
//   nvcc -o graph_absent graph_absent.cu -lcuda && ./graph_absent

#include "vmm.h"

static CUdeviceptr at_, good; // at_: what is tried; good: memory that is there
static CUmemGenericAllocationHandle handle;
static const size_t BYTES = 2 * MIB;
static char host[64];

enum place { ABSENT, NO_ACCESS, PRESENT };
static const char *place_name[] = {"absent", "mapped without access", "present"};
static place now = ABSENT;

static void put(place p) {
	if (p == now) return;
	if (now != ABSENT) CHECK(cuMemUnmap(at_, BYTES));
	if (p != ABSENT) CHECK(cuMemMap(at_, BYTES, 0, handle, 0));
	if (p == PRESENT) CHECK(cuMemSetAccess(at_, BYTES, &rw, 1));
	now = p;
}

static const char *name(CUresult r) {
	const char *n = "?";
	cuGetErrorName(r, &n);
	return n;
}

struct kind {
	const char *what;
	std::function<CUresult(CUstream)> call;
};

int main() {
	open_device();
	CHECK(cuMemAddressReserve(&at_, BYTES, 0, 0, 0));
	CHECK(cuMemCreate(&handle, BYTES, &prop, 0));
	CHECK(cuMemAlloc(&good, BYTES));
	CUstream s;
	CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	const kind kinds[] = {
		{"cuMemsetD32Async", [](CUstream s) { return cuMemsetD32Async(at_, 1, 1024, s); }},
		{"cuMemcpyDtoDAsync from", [](CUstream s) { return cuMemcpyDtoDAsync(good, at_, 4096, s); }},
		{"cuMemcpyDtoDAsync to", [](CUstream s) { return cuMemcpyDtoDAsync(at_, good, 4096, s); }},
		{"cuMemcpyAsync to", [](CUstream s) { return cuMemcpyAsync(at_, good, 4096, s); }},
		{"cuMemcpyHtoDAsync", [](CUstream s) { return cuMemcpyHtoDAsync(at_, host, sizeof host, s); }},
	};
	for (place p : {ABSENT, NO_ACCESS, PRESENT}) {
		unsigned type = 0;
		CUdeviceptr pointer = 0;
		put(p);
		CUresult asked = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at_);
		CUresult device = cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at_);
		printf("%-22s: memory type %u (%s), device pointer %s\n", place_name[p], type, name(asked), name(device));
	}
	for (const kind &k : kinds) {
		for (place p : {ABSENT, NO_ACCESS, PRESENT}) {
			put(p);
			CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
			CUresult call = k.call(s);
			CUgraph g = nullptr;
			CUresult end = cuStreamEndCapture(s, &g);
			printf("%-24s captured %-22s: %s, end %s\n", k.what, place_name[p], name(call), name(end));
			if (g) cuGraphDestroy(g);
		}
		put(PRESENT);
		CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
		CHECK(k.call(s));
		CUgraph g;
		CUgraphExec e = nullptr;
		CHECK(cuStreamEndCapture(s, &g));
		put(ABSENT);
		CUresult made = cuGraphInstantiate(&e, g, 0);
		printf("%-24s instantiated absent: %s\n", k.what, name(made));
		if (made != CUDA_SUCCESS) {
			put(PRESENT);
			CHECK(cuGraphInstantiate(&e, g, 0));
			put(ABSENT);
		}
		CUgraphExecUpdateResultInfo info;
		printf("%-24s updated absent: %s\n", k.what, name(cuGraphExecUpdate(e, g, &info)));
		CUresult upload = cuGraphUpload(e, s);
		printf("%-24s uploaded absent: %s\n", k.what, name(upload));
		put(PRESENT);
		CUresult launch = cuGraphLaunch(e, s), wait = cuStreamSynchronize(s);
		printf("%-24s launched present: %s, %s\n", k.what, name(launch), name(wait));
		cuGraphExecDestroy(e);
		cuGraphDestroy(g);
	}
	return 0;
}
