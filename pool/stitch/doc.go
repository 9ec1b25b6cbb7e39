// Package stitch is an allocator of device memory.
package stitch
