// Package heap keeps a slice as a binary heap, as container/heap does and in the same order, without calls through interfaces and without
// an allocation for each element that is pushed or popped: the engines make thousands of plans a minute, of some thousand elements each.
//
// The first element is the one that no other is less than. less must not change while a slice is a heap.
package heap

// Init makes a slice a heap.
func Init[E any](s []E, less func(a, b E) bool) {
	for i := len(s)/2 - 1; i >= 0; i-- {
		down(s, i, less)
	}
}

// Push adds an element.
func Push[E any](s []E, x E, less func(a, b E) bool) []E {
	s = append(s, x)
	for j := len(s) - 1; ; {
		i := (j - 1) / 2
		if i == j || !less(s[j], s[i]) {
			return s
		}
		s[i], s[j] = s[j], s[i]
		j = i
	}
}

// Pop takes the first element of a heap that has any.
func Pop[E any](s []E, less func(a, b E) bool) (first E, rest []E) {
	n := len(s) - 1
	s[0], s[n] = s[n], s[0]
	down(s[:n], 0, less)
	return s[n], s[:n]
}

func down[E any](s []E, i int, less func(a, b E) bool) {
	for {
		j := 2*i + 1
		if j >= len(s) {
			return
		}
		if k := j + 1; k < len(s) && less(s[k], s[j]) {
			j = k
		}
		if !less(s[j], s[i]) {
			return
		}
		s[i], s[j] = s[j], s[i]
		i = j
	}
}
