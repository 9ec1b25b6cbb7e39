// vmm_parts.cu - whether a part of a physical handle can be mapped, and one handle at two places,
// and what that costs beside copies both ways.
//
// Build:  nvcc -O2 -std=c++17 -o vmm_parts vmm_parts.cu -lcuda
// Run:    ./vmm_parts            one line of JSON a row; less than 2 GiB of plain device memory
//
// If parts could be mapped, memory could go from one size to another without a handle being released
// and created. If a handle can be mapped at two places, a dead range can stay mapped while its memory
// is used elsewhere.

#include "vmm.h"

static const size_t WHOLE = 64 * MIB;
static CUdeviceptr base;

static const char *name_of(CUresult r) {
	const char *name = "?";
	cuGetErrorName(r, &name);
	return name;
}

// try_part maps a part of a handle, and says what the driver answers to mapping and to access.
static void try_part(CUmemGenericAllocationHandle h, size_t offset, size_t bytes) {
	CUresult mapped = cuMemMap(base, bytes, offset, h, 0), access = CUDA_SUCCESS;
	if (mapped == CUDA_SUCCESS) {
		access = cuMemSetAccess(base, bytes, &rw, 1);
		CHECK(cuMemUnmap(base, bytes));
	}
	printf("{\"question\": \"part\", \"handle_mib\": %zu, \"offset_mib\": %zu, \"mib\": %zu, \"map\": \"%s\", \"set_access\": \"%s\"}\n",
	       WHOLE / MIB, offset / MIB, bytes / MIB, name_of(mapped), mapped == CUDA_SUCCESS ? name_of(access) : "not asked");
}

// see_alias maps a handle at two places and says whether what is written at one is read at the other.
static void see_alias(CUmemGenericAllocationHandle h) {
	CUdeviceptr a = base, b = base + WHOLE;
	CHECK(cuMemMap(a, WHOLE, 0, h, 0));
	CHECK(cuMemSetAccess(a, WHOLE, &rw, 1));
	CUresult mapped = cuMemMap(b, WHOLE, 0, h, 0), access = CUDA_SUCCESS;
	unsigned same = 0, after = 0;
	if (mapped == CUDA_SUCCESS && (access = cuMemSetAccess(b, WHOLE, &rw, 1)) == CUDA_SUCCESS) {
		unsigned word = 0;
		CHECK(cuMemsetD32(a, 0x1234567, WHOLE / 4));
		CHECK(cuMemcpyDtoH(&word, b + WHOLE - 4, 4));
		same = word == 0x1234567;
		CHECK(cuMemUnmap(a, WHOLE));
		CHECK(cuMemcpyDtoH(&word, b, 4));
		after = word == 0x1234567;
		CHECK(cuMemMap(a, WHOLE, 0, h, 0));
		CHECK(cuMemUnmap(b, WHOLE));
	}
	CHECK(cuMemUnmap(a, WHOLE));
	printf("{\"question\": \"two places\", \"map\": \"%s\", \"set_access\": \"%s\", \"same_contents\": %u, \"one_unmapped\": %u}\n", name_of(mapped), name_of(access), same, after);
}

// measure maps, sets access and unmaps, with so many other ranges to which the same handle is mapped.
static void measure(CUmemGenericAllocationHandle h, int others, size_t piece, const Buffers &buffers) {
	Copying copies;
	if (piece) {
		copies.start(8, 1, 0, buffers, true);
		copies.start(piece, 1, 0, buffers, false);
	}
	std::this_thread::sleep_for(std::chrono::milliseconds(20));
	for (int k = 1; k <= others; k++) {
		CHECK(cuMemMap(base + k * WHOLE, WHOLE, 0, h, 0));
		CHECK(cuMemSetAccess(base + k * WHOLE, WHOLE, &rw, 1));
	}
	Spent spent;
	for (double from = now_us(); now_us() - from < 100e3;) spent.once(base, WHOLE, &h);
	for (int k = 1; k <= others; k++) CHECK(cuMemUnmap(base + k * WHOLE, WHOLE));
	copies.end();
	printf("{\"question\": \"cost\", \"mapped_elsewhere\": %d, \"piece_out_mib\": %zu, \"map_us\": %.1f, \"set_access_us\": %.1f, \"set_access_p90_us\": %.1f, \"unmap_us\": %.1f, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f}\n",
	       others, piece, at(spent.maps, .5), at(spent.accesses, .5), at(spent.accesses, .9), at(spent.unmaps, .5), copies.in_gb_per_s, copies.out_gb_per_s);
	fflush(stdout);
}

int main() {
	open_device();
	Buffers buffers;
	CHECK(cuMemAddressReserve(&base, 32 * WHOLE, 0, 0, 0));
	CUmemGenericAllocationHandle h;
	CHECK(cuMemCreate(&h, WHOLE, &prop, 0));
	try_part(h, 0, WHOLE);
	try_part(h, 0, WHOLE / 2);
	try_part(h, WHOLE / 2, WHOLE / 2);
	try_part(h, 2 * MIB, 2 * MIB);
	see_alias(h);
	for (size_t piece : {0, 8})
		for (int others : {0, 1, 15}) measure(h, others, piece, buffers);
	CHECK(cuMemRelease(h));
	return 0;
}
