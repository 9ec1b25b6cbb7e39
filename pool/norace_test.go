//go:build !race

package pool

const raced = false
