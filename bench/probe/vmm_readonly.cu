// vmm_readonly.cu - can device memory be mapped for reading only, and what does a write to it do?
//
//   nvcc -O2 -std=c++17 -arch=sm_90 -o vmm_readonly bench/probe/vmm_readonly.cu -lcuda && ./vmm_readonly
//
// Each case is a child process, as an error may end the context, and each is given 20 s. A JSON line for each: the
// errors (0: none) of setting the access and of what was done then, whether the memory kept its contents, and microseconds of setting the
// access of 64 MiB and back. "alias": the same physical memory once more, at another address, for reading only.

#include "vmm.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t BYTES = 64 * MIB;

__global__ void read_words(const unsigned *from, size_t n, unsigned *to) {
	unsigned sum = 0;
	for (size_t i = threadIdx.x; i < n; i += blockDim.x) sum += from[i];
	atomicAdd(to, sum);
}
__global__ void write_word(unsigned *to) { *to = 1; }
__global__ void add_word(unsigned *to) { atomicAdd(to, 1); }

static const char *const CASES[] = {"read", "write", "atomic", "fill", "copy_to", "copy_from_host", "alias_read", "alias_write", "write_beside_alias", "write_again"};

static void run_case(const char *what) {
	open_device();
	CUdeviceptr a, b, plain;
	CUmemGenericAllocationHandle h;
	CUmemAccessDesc ro = rw;
	ro.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	CHECK(cuMemAlloc(&plain, BYTES));
	CHECK(cuMemAddressReserve(&a, BYTES, 0, 0, 0));
	CHECK(cuMemAddressReserve(&b, BYTES, 0, 0, 0));
	CHECK(cuMemCreate(&h, BYTES, &prop, 0));
	CHECK(cuMemMap(a, BYTES, 0, h, 0));
	CHECK(cuMemSetAccess(a, BYTES, &rw, 1));
	CHECK(cuMemsetD32(a, 7, BYTES / 4));
	CHECK(cuMemsetD32(plain, 0, BYTES / 4));
	CHECK(cuCtxSynchronize());
	const bool alias = strstr(what, "alias");
	const CUdeviceptr p = alias && strcmp(what, "write_beside_alias") ? b : a;
	const double t0 = now_us();
	if (alias) CHECK(cuMemMap(b, BYTES, 0, h, 0));
	CUresult set = cuMemSetAccess(alias ? b : a, BYTES, &ro, 1), back = CUDA_SUCCESS;
	const double t1 = now_us();
	double again = 0;
	CUresult did = CUDA_SUCCESS;
	if (set == CUDA_SUCCESS) {
		if (strstr(what, "read"))
			read_words<<<1, 1024>>>((unsigned *)p, BYTES / 4, (unsigned *)plain);
		else if (!strcmp(what, "atomic"))
			add_word<<<1, 1>>>((unsigned *)p);
		else if (!strcmp(what, "fill"))
			did = cuMemsetD32(p, 1, 1024);
		else if (!strcmp(what, "copy_to"))
			did = cuMemcpyDtoD(p, plain, 4096);
		else if (!strcmp(what, "copy_from_host")) {
			unsigned zeros[1024] = {};
			did = cuMemcpyHtoD(p, zeros, sizeof zeros);
		} else if (!strcmp(what, "write_again")) {
			const double t2 = now_us();
			back = cuMemSetAccess(a, BYTES, &rw, 1);
			again = now_us() - t2;
			write_word<<<1, 1>>>((unsigned *)p);
		} else
			write_word<<<1, 1>>>((unsigned *)p);
		CUresult r = cuCtxSynchronize();
		if (did == CUDA_SUCCESS) did = r;
	}
	unsigned first = 0;
	CUresult look = cuMemcpyDtoH(&first, a, 4);
	printf("{\"case\":\"%s\",\"set_access\":%d,\"set_us\":%.1f,\"access_back\":%d,\"back_us\":%.1f,\"did\":%d,\"context_after\":%d,\"first_word\":%u}\n", what, set, t1 - t0, back, again, did, look, first);
	fflush(stdout);
	_exit(0);
}

int main() {
	for (const char *what : CASES) {
		fflush(stdout);
		pid_t child = fork(); // before this process has anything to do with the driver
		if (!child) run_case(what);
		int status = 0;
		for (int i = 0; i < 200 && waitpid(child, &status, WNOHANG) == 0; i++) {
			usleep(100000);
			if (i == 199) {
				kill(child, SIGKILL);
				waitpid(child, &status, 0);
			}
		}
		if (status) printf("{\"case\":\"%s\",\"ended_with\":%d}\n", what, status);
	}
}
