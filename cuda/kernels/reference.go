package kernels

import (
	"encoding/binary"
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
)

// Sum128 is the checksum of a range: two sums modulo 2^64.
type Sum128 [2]uint64

func (s Sum128) String() string { return fmt.Sprintf("%016x%016x", s[0], s[1]) }

// K separates the positions, M0 to M3 mix. Odd, with no pattern: K is 2^64
// divided by the golden ratio, the others are the fractions of the square roots
// of 2, 3, 5 and 7, made odd.
const (
	constK  = 0x9e3779b97f4a7c15
	constM0 = 0x6a09e667f3bcc909
	constM1 = 0xbb67ae8584caa73b
	constM2 = 0x3c6ef372fe94f82b
	constM3 = 0xa54ff53a5f1d36f1
)

// mix is a bijection whose every output bit depends on every input bit.
func mix(x, m, n uint64) uint64 {
	x = (x ^ x>>32) * m
	x = (x ^ x>>32) * n
	return x ^ x>>32
}

// add adds what word w at index i contributes.
func (s *Sum128) add(w, i uint64) {
	h := mix(w+(i+1)*constK, constM0, constM1)
	s[0] += h
	s[1] += mix(h, constM2, constM3)
}

// Sum is the checksum of memory of the host.
func Sum(b []byte) Sum128 {
	var s Sum128
	i := uint64(0)
	for ; len(b) >= 8; b, i = b[8:], i+1 {
		s.add(binary.LittleEndian.Uint64(b), i)
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s.add(binary.LittleEndian.Uint64(last[:]), i)
	}
	return s
}

// Find returns the words of b, at multiples of 8, that are addresses of the span.
func Find(b []byte, of Span) (words []cuda.Ptr) {
	for ; len(b) >= 8; b = b[8:] {
		if w := cuda.Ptr(binary.LittleEndian.Uint64(b)); of.Lo <= w && w < of.Hi {
			words = append(words, w)
		}
	}
	return words
}
