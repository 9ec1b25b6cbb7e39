package main

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/options"
)

// measured is one figure.
type measured struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// measurements are all of them, of one card.
type measurements struct {
	Version string          `json:"version"`
	Device  cuda.DeviceInfo `json:"device"`
	Figures []measured      `json:"figures"`
}

// newMeasureCommand is `penstock measure`.
func newMeasureCommand() *cobra.Command {
	var budget string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "measure",
		Short: "Check and time on this GPU what the explicit engine is built on",
		Long: `Run Penstock's own device code (checksum and address scan) on the GPU, compare it
with what it should compute, and time it; pin host memory and time that, and what
it does to launches and copies meanwhile; copy both ways. Takes less than a minute,
1 GiB of device memory and --host-budget of host memory. A wrong result is an error.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bytes, err := options.ParseBytes(budget)
			if err != nil {
				return fmt.Errorf("--host-budget: %w", err)
			}
			d, err := cuda.Open(cuda.Options{})
			if err != nil {
				return err
			}
			sizes := fullSizes
			sizes.poolBytes = bytes
			out := measurements{Version: version, Device: d.Info()}
			err = onBoundThread(d, func() error {
				return measureAll(cmd.Context(), d, sizes, cmd.ErrOrStderr(), func(m measured) { out.Figures = append(out.Figures, m) })
			})
			if err != nil {
				return err
			}
			return writeMeasurements(cmd.OutOrStdout(), out, asJSON)
		},
	}
	textFlag(cmd, &budget, "host-budget")
	boolFlag(cmd, &asJSON, "json")
	return cmd
}

func writeMeasurements(w io.Writer, out measurements, asJSON bool) error {
	if asJSON {
		return writeJSON(w, out)
	}
	if _, err := fmt.Fprintf(w, "%s, driver %s\n", out.Device.Name, out.Device.DriverVersion); err != nil {
		return err
	}
	width := 0
	for _, m := range out.Figures {
		width = max(width, len(m.What))
	}
	for _, m := range out.Figures {
		if _, err := fmt.Fprintf(w, "  %-*s %10.2f %s\n", width, m.What, m.Value, m.Unit); err != nil {
			return err
		}
	}
	return nil
}

// onBoundThread runs f on a thread that the device's context is current on.
func onBoundThread(d cuda.Driver, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.BindThread(); err != nil {
		return err
	}
	return f()
}

// measureAll takes the figures in turn. Progress is one line for each part.
func measureAll(ctx context.Context, d cuda.Driver, sizes measureSizes, progress io.Writer, report func(measured)) error {
	for _, part := range []struct {
		name string
		run  func(*measurer) error
	}{
		{"device code", (*measurer).deviceCode},
		{"pinning", (*measurer).pinning},
		{"copies", (*measurer).copies},
		{"host memory in place", (*measurer).hostInPlace},
	} {
		fmt.Fprintf(progress, "penstock: measuring: %s\n", part.name)
		if err := part.run(&measurer{driver: d, sizes: sizes, report: report}); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
