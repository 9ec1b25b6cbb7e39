package kernels

import (
	"fmt"
	"strings"
)

// All kernels are started with blocks of this many threads. The checksum's
// shared memory has 16 bytes for each.
const blockThreads = 256

// Names of the kernels in the module.
const (
	checksumName = "penstock_checksum"
	scanName     = "penstock_scan"
	collectName  = "penstock_collect"
)

// ptx is the module. Volta is the oldest architecture, and 7.0 the oldest PTX,
// that every driver Penstock supports compiles.
func ptx() string {
	return ".version 7.0\n.target sm_70\n.address_size 64\n" + checksumPTX() + scanPTX() + collectPTX()
}

// Who takes part in loadUnits: all blocks of the launch, or each block alone.
const (
	allBlocks = "	mov.u32 bid, %ctaid.x;\n	mov.u32 blocks, %nctaid.x;\n"
	oneBlock  = "	mov.u32 bid, 0;\n	mov.u32 blocks, 1;\n"
)

// loadUnits is the text that reads the units (16 bytes each, aligned) of a
// range, each by one thread: thread u takes units u, u+stride, u+2*stride, ...
// until the units end, four at a time while there are as many, so that enough
// reads are under way to fill the memory's pipes. Before it, `base` is the first
// unit's address and `units` their number. word is called with the registers of
// a unit's two words and gives the text that deals with them; next is put behind
// each unit.
func loadUnits(who string, word func(first, second string) string, next string) string {
	var b strings.Builder
	b.WriteString(who + `	mov.u32 tid, %tid.x;
	mov.u32 threads, %ntid.x;
	mul.wide.u32 u, bid, threads;
	cvt.u64.u32 t, tid;
	add.u64 u, u, t;
	mul.wide.u32 stride, blocks, threads;
	mul.lo.u64 stride3, stride, 3;
	shl.b64 t, u, 4;
	add.u64 at, base, t;
	shl.b64 step, stride, 4;
`)
	b.WriteString(`
four:
	add.u64 far, u, stride3;
	setp.ge.u64 p, far, units;
	@p bra one;
	add.u64 at1, at, step;
	add.u64 at2, at1, step;
	add.u64 at3, at2, step;
	ld.global.v2.u64 {w0, w1}, [at];
	ld.global.v2.u64 {w2, w3}, [at1];
	ld.global.v2.u64 {w4, w5}, [at2];
	ld.global.v2.u64 {w6, w7}, [at3];
`)
	for i := 0; i < 8; i += 2 {
		b.WriteString(word(fmt.Sprintf("w%d", i), fmt.Sprintf("w%d", i+1)) + next)
	}
	b.WriteString(`	add.u64 at, at3, step;
	add.u64 u, far, stride;
	bra four;

one:
	setp.ge.u64 p, u, units;
	@p bra loaded;
	ld.global.v2.u64 {w0, w1}, [at];
` + word("w0", "w1") + next + `	add.u64 at, at, step;
	add.u64 u, u, stride;
	bra one;

loaded:
`)
	return b.String()
}

// loadRegisters are those of loadUnits.
const loadRegisters = `	.reg .pred p;
	.reg .b32 tid, bid, threads, blocks;
	.reg .b64 base, units, u, t, stride, stride3, at, step, far, at1, at2, at3, w0, w1, w2, w3, w4, w5, w6, w7;
`

// mixPTX is mix of reference.go on register x.
func mixPTX(m, n uint64) string {
	return fmt.Sprintf(`	shr.u64 t, x, 32;
	xor.b64 x, x, t;
	mul.lo.u64 x, x, 0x%x;
	shr.u64 t, x, 32;
	xor.b64 x, x, t;
	mul.lo.u64 x, x, 0x%x;
	shr.u64 t, x, 32;
	xor.b64 x, x, t;
`, m, n)
}

// addPTX is Sum128.add: word w, where key is (i+1)*K.
func addPTX(w, key string) string {
	return fmt.Sprintf("	add.u64 x, %s, %s;\n", w, key) +
		mixPTX(constM0, constM1) + "	add.u64 sum0, sum0, x;\n" +
		mixPTX(constM2, constM3) + "	add.u64 sum1, sum1, x;\n"
}

// checksumPTX: base (a multiple of 16), units of 16 bytes, bytes after them
// (less than 16), and where block b writes its two sums: out + 16*b.
func checksumPTX() string {
	const next = "	add.u64 key, key, keystep;\n"
	return `
.visible .entry ` + checksumName + `(.param .u64 pbase, .param .u64 punits, .param .u64 ptail, .param .u64 pout)
{
` + loadRegisters + fmt.Sprintf(`	.reg .b32 half, other;
	.reg .b64 tail, out, key, key1, keystep, sum0, sum1, x, n, slot, from, byte, shift, a0, a1;
	.shared .align 16 .b8 partial[%d];

	ld.param.u64 base, [pbase];
	ld.param.u64 units, [punits];
	ld.param.u64 tail, [ptail];
	ld.param.u64 out, [pout];
	cvta.to.global.u64 base, base;
	cvta.to.global.u64 out, out;
	mov.u64 sum0, 0;
	mov.u64 sum1, 0;

	mov.u32 tid, %%tid.x;
	mov.u32 bid, %%ctaid.x;
	mov.u32 threads, %%ntid.x;
	mov.u32 blocks, %%nctaid.x;
	mul.wide.u32 key, bid, threads;
	cvt.u64.u32 t, tid;
	add.u64 key, key, t;
	shl.b64 key, key, 1;
	add.u64 key, key, 1;
	mul.lo.u64 key, key, 0x%x;
	mul.wide.u32 keystep, blocks, threads;
	shl.b64 keystep, keystep, 1;
	mul.lo.u64 keystep, keystep, 0x%x;
`, blockThreads*16, uint64(constK), uint64(constK)) +
		loadUnits(allBlocks, func(first, second string) string {
			return addPTX(first, "key") + fmt.Sprintf("	add.u64 key1, key, 0x%x;\n", uint64(constK)) + addPTX(second, "key1")
		}, next) +
		// The bytes after the last unit: one thread gathers them into words.
		fmt.Sprintf(`	setp.ne.u32 p, tid, 0;
	@p bra reduce;
	setp.ne.u32 p, bid, 0;
	@p bra reduce;
	shl.b64 t, units, 4;
	add.u64 at, base, t;
	shl.b64 key, units, 1;
	add.u64 key, key, 1;
	mul.lo.u64 key, key, 0x%x;
	mov.u64 n, 0;
	mov.u64 w0, 0;

gather:
	setp.ge.u64 p, n, tail;
	@p bra last;
	ld.global.u8 byte, [at];
	and.b64 shift, n, 7;
	shl.b64 shift, shift, 3;
	cvt.u32.u64 other, shift;
	shl.b64 byte, byte, other;
	or.b64 w0, w0, byte;
	add.u64 at, at, 1;
	add.u64 n, n, 1;
	and.b64 t, n, 7;
	setp.ne.u64 p, t, 0;
	@p bra gather;
%s	add.u64 key, key, 0x%x;
	mov.u64 w0, 0;
	bra gather;

last:
	and.b64 t, n, 7;
	setp.eq.u64 p, t, 0;
	@p bra reduce;
%s`, uint64(constK), addPTX("w0", "key"), uint64(constK), addPTX("w0", "key")) +
		// The block's sums: half of the threads add those of the other half, and so on.
		`
reduce:
	mov.u64 slot, partial;
	mul.wide.u32 t, tid, 16;
	add.u64 slot, slot, t;
	st.shared.v2.u64 [slot], {sum0, sum1};
	shr.u32 half, threads, 1;

fold:
	bar.sync 0;
	setp.eq.u32 p, half, 0;
	@p bra done;
	setp.ge.u32 p, tid, half;
	@p bra folded;
	mul.wide.u32 from, half, 16;
	add.u64 from, from, slot;
	ld.shared.v2.u64 {a0, a1}, [from];
	add.u64 sum0, sum0, a0;
	add.u64 sum1, sum1, a1;
	st.shared.v2.u64 [slot], {sum0, sum1};
folded:
	shr.u32 half, half, 1;
	bra fold;

done:
	setp.ne.u32 p, tid, 0;
	@p bra over;
	mul.wide.u32 t, bid, 16;
	add.u64 out, out, t;
	st.global.v2.u64 [out], {sum0, sum1};
over:
	ret;
}
`
}

// scanPTX: a table of pieces, one for each block (its address, a multiple of 8, and its
// words); of each list how many words have been found; the lists, of room words each; and for
// each list the lowest address sought and how many there are from it on. More words may be
// found than a list holds.
func scanPTX() string {
	label := 0
	look := func(w string) string {
		var b strings.Builder
		for list := range spans {
			label++
			fmt.Fprintf(&b, `	sub.u64 t, %[1]s, lo%[2]d;
	setp.ge.u64 p, t, span%[2]d;
	@p bra no%[3]d;
	atom.global.add.u64 i, [counts+%[4]d], 1;
	setp.ge.u64 p, i, room;
	@p bra no%[3]d;
	shl.b64 i, i, 3;
	add.u64 i, i, list%[2]d;
	st.global.u64 [i], %[1]s;
no%[3]d:
`, w, list, label, 8*list)
		}
		return b.String()
	}
	return `
.visible .entry ` + scanName + `(.param .u64 ptable, .param .u64 pcounts, .param .u64 plists, .param .u64 proom, .param .u64 plo0, .param .u64 pspan0, .param .u64 plo1, .param .u64 pspan1)
{
` + loadRegisters + `	.reg .b64 lo0, span0, lo1, span1, counts, list0, list1, room, entry, slot, first, rest, i;
	.shared .align 16 .b8 piece[16];

	ld.param.u64 entry, [ptable];
	ld.param.u64 counts, [pcounts];
	ld.param.u64 list0, [plists];
	ld.param.u64 room, [proom];
	ld.param.u64 lo0, [plo0];
	ld.param.u64 span0, [pspan0];
	ld.param.u64 lo1, [plo1];
	ld.param.u64 span1, [pspan1];
	cvta.to.global.u64 entry, entry;
	cvta.to.global.u64 counts, counts;
	cvta.to.global.u64 list0, list0;
	shl.b64 list1, room, 3;
	add.u64 list1, list1, list0;
	mov.u32 bid, %ctaid.x;
	mul.wide.u32 t, bid, 16;
	add.u64 entry, entry, t;

	// The table may be in host memory: one thread reads for all of its block.
	mov.u64 slot, piece;
	mov.u32 tid, %tid.x;
	setp.ne.u32 p, tid, 0;
	@p bra read;
	ld.global.v2.u64 {first, units}, [entry];
	st.shared.v2.u64 [slot], {first, units};
read:
	bar.sync 0;
	ld.shared.v2.u64 {first, units}, [slot];
	cvta.to.global.u64 first, first;

	// A word before the first unit, when the piece does not begin with a whole one.
	shr.u64 rest, first, 3;
	and.b64 rest, rest, 1;
	shl.b64 base, rest, 3;
	add.u64 base, first, base;
	sub.u64 units, units, rest;
	and.b64 far, units, 1;
	shr.u64 units, units, 1;
	setp.ne.u32 p, tid, 0;
	@p bra whole;
	setp.eq.u64 p, rest, 0;
	@p bra even;
	ld.global.u64 w0, [first];
` + look("w0") + `even:
	setp.eq.u64 p, far, 0;
	@p bra whole;
	shl.b64 at, units, 4;
	add.u64 at, at, base;
	ld.global.u64 w0, [at];
` + look("w0") + `whole:
` + loadUnits(oneBlock, func(first, second string) string { return look(first) + look(second) }, "") + `	ret;
}
`
}

// collectPTX: how many words of each list have been found, and where that is copied to. One
// thread copies it and makes it 0 for the next search.
func collectPTX() string {
	return `
.visible .entry ` + collectName + `(.param .u64 pcounts, .param .u64 pto)
{
	.reg .b64 counts, to, none, n0, n1;

	ld.param.u64 counts, [pcounts];
	ld.param.u64 to, [pto];
	cvta.to.global.u64 counts, counts;
	cvta.to.global.u64 to, to;
	mov.u64 none, 0;
	ld.global.v2.u64 {n0, n1}, [counts];
	st.global.v2.u64 [to], {n0, n1};
	st.global.v2.u64 [counts], {none, none};
	ret;
}
`
}
