//go:build !race

package raced

// On is true when this is built with the race detector.
const On = false
