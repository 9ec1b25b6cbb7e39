// Package testdata holds the data that ships inside the penstock binary and that
// tests of every package share.
//
// The one trace is a launch log of three iterations of a real job: GPT-2
// medium in bf16, batch 4 x 512, trained with AdamW by unmodified PyTorch 2.11 on
// one NVIDIA H200. It is what `penstock demo` replays. The iterations peak
// at 5.9 GiB of live memory.
//
// Caveat: the go tool leaves folders called testdata out of patterns such as
// ./..., so this package is built only because others import it.
package testdata

import _ "embed"

// GPT2MName is the file name of the shipped trace, for trace.Parse.
const GPT2MName = "gpt2m.tsv.gz"

// GPT2M is the shipped trace, a compressed launch log.
//
//go:embed traces/gpt2m.tsv.gz
var GPT2M []byte
