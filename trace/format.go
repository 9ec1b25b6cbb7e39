package trace

import (
	"encoding/binary"
	"hash/crc32"
)

// The layout of a recording. docs/formats.md is its description; the
// numbers here never change within a version.
const (
	fileMagic     = "\x89PSTRC\r\n" // not text, and damaged by newline translation
	formatVersion = 2
	fileHeadBytes = len(fileMagic) + 4 // magic, version, reserved

	chunkMagic     = 0x4b434850 // "PHCK", little endian
	chunkHeadBytes = 24

	chunkHeader = 1 // payload: Header as JSON; always the first chunk
	chunkEvents = 2 // payload: records
	chunkEnd    = 3 // payload: count of all events; nothing follows it

	codecRaw  = 0
	codecZstd = 1

	// maxChunkBytes bounds a payload, stored and decoded; the longest event fits.
	maxChunkBytes = 8 << 20
	// targetChunkBytes is when the writer closes a chunk: enough to compress
	// well, little enough to lose.
	targetChunkBytes = 256 << 10

	maxHeaderBytes = 64 << 10
	maxNameBytes   = 64 << 10
	maxAccesses    = 1 << 18
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkHead stands before every payload, little endian.
type chunkHead struct {
	kind, codec        uint8
	storedBytes, bytes uint32
	events             uint32
	checksum           uint32 // crc32c of the head before it and the stored payload
}

// put writes the head for a stored payload, computing the checksum.
func (h *chunkHead) put(dst *[chunkHeadBytes]byte, stored []byte) {
	le := binary.LittleEndian
	le.PutUint32(dst[0:], chunkMagic)
	dst[4], dst[5] = h.kind, h.codec
	le.PutUint16(dst[6:], 0)
	le.PutUint32(dst[8:], h.storedBytes)
	le.PutUint32(dst[12:], h.bytes)
	le.PutUint32(dst[16:], h.events)
	h.checksum = crc32.Update(crc32.Checksum(dst[:20], castagnoli), castagnoli, stored)
	le.PutUint32(dst[20:], h.checksum)
}

// parse reads a head and returns what is wrong with it, or "".
func (h *chunkHead) parse(src *[chunkHeadBytes]byte) string {
	le := binary.LittleEndian
	*h = chunkHead{kind: src[4], codec: src[5], storedBytes: le.Uint32(src[8:]), bytes: le.Uint32(src[12:]),
		events: le.Uint32(src[16:]), checksum: le.Uint32(src[20:])}
	switch {
	case le.Uint32(src[0:]) != chunkMagic:
		return "no chunk begins here"
	case h.storedBytes > maxChunkBytes || h.bytes > maxChunkBytes:
		return "the chunk's size is impossible"
	case h.codec > codecZstd || h.codec == codecRaw && h.storedBytes != h.bytes:
		return "the chunk's encoding is unknown"
	}
	return ""
}

// sum is the checksum that the chunk should carry.
func sum(src *[chunkHeadBytes]byte, stored []byte) uint32 {
	return crc32.Update(crc32.Checksum(src[:20], castagnoli), castagnoli, stored)
}

// Bits of a record's head, above the four of its kind: which fields follow.
const (
	hasTime = 1 << (iota + 4)
	hasDuration
	hasStream
	hasAlloc
	hasBytes
	hasAddress
	hasFunction
	hasGrid
	hasBlock
	hasName
	hasAccesses
	hasEnums
	hasOrigin // from version 2 on, as are those below
	hasBatch
	hasProcess

	knownBits = hasProcess<<1 - 1
)

// Bits of an access's head.
const (
	accessModeBits  = 3
	accessHasOffset = 4
)

// deltas is what the differences in records refer to. It starts from zero in
// every chunk, so that no chunk needs another.
type deltas struct {
	time     int64
	stream   uint64
	alloc    uint64
	address  uint64
	accessed uint64
	batch    uint32
	process  uint32
}

// zigzag folds the sign of a difference into its lowest bit. Differences of
// unsigned values wrap around, which is as good.
func zigzag(v int64) uint64   { return uint64(v)<<1 ^ uint64(v>>63) }
func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }
