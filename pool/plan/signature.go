package plan

// SignatureCalls is how many calls a Signature covers.
const SignatureCalls = 8

// Signature is a hash of the sizes of the last SignatureCalls requests, rounded
// up. It marks a place in the iteration without marks from the model.
type Signature uint64

// Signer computes the signature of each call of a sequence. The zero value is ready.
type Signer struct {
	last [SignatureCalls]uint64
	next int
}

// Call notes a request and returns the signature there.
func (s *Signer) Call(bytes int64) Signature {
	s.last[s.next] = uint64(RoundUp(bytes))
	s.next = (s.next + 1) % SignatureCalls
	const prime = 0x100000001b3 // FNV-1a, a word at a time
	hash := uint64(0xcbf29ce484222325)
	for i := range SignatureCalls {
		hash = (hash ^ s.last[(s.next+i)%SignatureCalls]) * prime
		hash ^= hash >> 29
	}
	return Signature(hash)
}
