package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/pool/plan"
	"github.com/penstock-gpu/penstock/pool/stitch"
)

// poolConfig is how the options lay out memory that stays on the device.
func poolConfig(o options.Runtime, gpu string) (pool.Config, error) {
	c := pool.Config{
		Unplanned: !o.Planning,
		Stitch: stitch.Config{
			Strategy: stitch.Strategy(slices.Index(options.Strategies, o.Stitch)), // both in the same order
			MinBytes: o.StitchMinBytes, ReuseRatio: o.StitchReuse, SpaceBytes: o.StitchSpaceBytes,
		},
	}
	if o.PlanPath == "" {
		return c, nil
	}
	p, err := plan.ReadFile(o.PlanPath)
	if err == nil {
		err = p.Matches(plan.Job{Command: strings.Join(os.Args, " "), GPU: gpu})
	}
	if err != nil {
		return c, fmt.Errorf("PENSTOCK_PLAN: %w", err)
	}
	c.Plan = p
	return c, nil
}
