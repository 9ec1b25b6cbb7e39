package main

import (
	"slices"

	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/pool/stitch"
)

// poolConfig is how the options lay out memory that stays on the device.
func poolConfig(o options.Runtime) pool.Config {
	return pool.Config{
		Unplanned: !o.Planning,
		Stitch: stitch.Config{
			Strategy: stitch.Strategy(slices.Index(options.Strategies, o.Stitch)), // both in the same order
			MinBytes: o.StitchMinBytes, ReuseRatio: o.StitchReuse, SpaceBytes: o.StitchSpaceBytes,
		},
	}
}
