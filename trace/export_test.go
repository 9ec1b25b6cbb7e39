package trace

import "bytes"

// ParseLimited is Parse with another memory limit.
func ParseLimited(name string, data []byte, limitBytes int64) (*Trace, error) {
	return load(name, bytes.NewReader(data), limitBytes)
}
