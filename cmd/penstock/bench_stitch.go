package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/pool/stitch"
)

// newBenchStitchCommand is `penstock bench stitch`.
func newBenchStitchCommand() *cobra.Command {
	var sizes, total string
	var json bool
	cmd := &cobra.Command{
		Use:   "stitch",
		Short: "Measure on this machine's GPU what stitching memory costs",
		Long: `Map device memory a second time, as the pool does when it makes one range of
scattered memory, and print what that costs for handles of several sizes. Unlike the
rest of bench this needs a GPU, and is measured.`,
		Example: `  penstock bench stitch
  penstock bench stitch --sizes 2MiB,20MiB,64MiB --json`,
		Args:        noArguments,
		Annotations: map[string]string{parentKey: "bench"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return benchStitch(cmd, sizes, total, json)
		},
	}
	textFlag(cmd, &sizes, "sizes")
	textFlag(cmd, &total, "total")
	boolFlag(cmd, &json, "json")
	return cmd
}

func benchStitch(cmd *cobra.Command, sizes, total string, json bool) error {
	bytes, err := options.ParseBytes(total)
	if err != nil {
		return fmt.Errorf("--total: %w", err)
	}
	var handles []int64
	for _, text := range strings.Split(sizes, ",") {
		n, err := options.ParseBytes(text)
		if err != nil {
			return fmt.Errorf("--sizes: %w", err)
		}
		handles = append(handles, n)
	}
	// A context belongs to a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d, err := cuda.Open(cuda.Options{})
	if err != nil {
		return err
	}
	if !d.Capabilities().VirtualMemory {
		return fmt.Errorf("this driver has no virtual memory management: nothing can be stitched")
	}
	if err := d.BindThread(); err != nil {
		return err
	}
	began := time.Now()
	now := func() time.Duration { return time.Since(began) }
	var all []stitch.Measurement
	for _, n := range handles {
		if _, err := stitch.Measure(d, n, bytes, now); err != nil { // the first time is slower
			return err
		}
		m, err := stitch.Measure(d, n, bytes, now)
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	if json {
		return writeJSON(cmd.OutOrStdout(), all)
	}
	us := func(t time.Duration) string { return fmt.Sprintf("%.1f", float64(t.Nanoseconds())/1e3) }
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s, driver %s; %s mapped a second time, us for each handle\n", d.Info().Name, d.Info().DriverVersion, size.Text(bytes))
	fmt.Fprintf(out, "%-8s %7s %7s %7s %11s %11s %7s %8s %16s\n", "handle", "number", "create", "map", "set access", "(each call)", "unmap", "release", "stitch per 2 MiB")
	for _, m := range all {
		fmt.Fprintf(out, "%-8s %7d %7s %7s %11s %11s %7s %8s %16s\n", size.Text(m.HandleBytes), m.Handles,
			us(m.Create), us(m.Map), us(m.SetAccess), us(m.SetAccessEach), us(m.Unmap), us(m.Release), us(m.StitchPer2MiB))
	}
	return nil
}
