// replays_sums.cu - two sums of 64 bits over each of many spans of memory, whatever the order in which blocks run.

typedef unsigned long long u64;

struct Piece {
	u64 base, bytes, first, span; // first: the index in its span of the first word
};

static __device__ u64 mix(u64 x, u64 m) {
	x = (x ^ x >> 32) * m;
	return x ^ x >> 29;
}

// Every piece begins at a multiple of 8; of a last word that is not whole the rest counts as zeros.
extern "C" __global__ void replays_sums(const Piece *pieces, u64 *out) {
	const Piece p = pieces[blockIdx.x];
	const u64 *words = (const u64 *)p.base;
	const u64 n = p.bytes / 8;
	u64 a = 0, b = 0;
	for (u64 i = threadIdx.x; i <= n; i += blockDim.x) {
		u64 w = 0;
		if (i < n)
			w = words[i];
		else if (p.bytes % 8)
			for (unsigned k = 0; k < p.bytes % 8; k++) w |= (u64)((const unsigned char *)(words + n))[k] << 8 * k;
		else
			break;
		const u64 h = mix(w + (p.first + i + 1) * 0x9e3779b97f4a7c15ull, 0xd6e8feb86659fd93ull);
		a += h;
		b += mix(h, 0xa0761d6478bd642full);
	}
	for (int lane = 16; lane; lane /= 2) {
		a += __shfl_down_sync(~0u, a, lane);
		b += __shfl_down_sync(~0u, b, lane);
	}
	if (threadIdx.x % 32 == 0) {
		atomicAdd(out + 2 * p.span, a);
		atomicAdd(out + 2 * p.span + 1, b);
	}
}
